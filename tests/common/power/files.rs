//! The file system, without a cache of the kernel's before it.

use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use rustix::fs::FallocateFlags;

use super::super::stamp::SECTOR;
use super::{Change, Content, Name, SLOW_ONE_IN, State, UnderWay, lock};

/// What one operation carries at most.
const WRITE_BYTES_MAX: u32 = 1 << 20;
pub const ROOT: u64 = 1;
/// Of the first file.
const FIRST: u64 = ROOT + 1;
/// Nothing is kept by the kernel: a cut may change everything.
const AT_ONCE: Duration = Duration::ZERO;
/// Space is counted in these.
const BLOCK_BYTES: u32 = 4_096;
/// So many of them are free, always.
const FREE: u64 = 1 << 17;

pub struct Files(pub Arc<Mutex<State>>);

impl Files {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut state = lock(&self.0);
        state.check()?;
        work(&mut state)
    }

    fn change(&self, node: INodeNo, change: impl FnOnce(&mut Content) -> Option<Change>) -> Result<(), Errno> {
        self.with(|state| {
            let content = state.content(node)?;
            if let Some(change) = change(content) {
                check_size(&change)?;
                content.change(change);
            }
            state.count()
        })
    }
}

/// A file is at most as large as what is free.
fn check_size(change: &Change) -> Result<(), Errno> {
    if change.end() as u64 > FREE * u64::from(BLOCK_BYTES) { Err(Errno::EFBIG) } else { Ok(()) }
}

impl State {
    fn content(&mut self, node: INodeNo) -> Result<&mut Content, Errno> {
        let number = node.0.checked_sub(FIRST).ok_or(Errno::EISDIR)?;
        let content = self.files.get_mut(number as usize).ok_or(Errno::ENOENT)?;
        if content.is_broken { Err(Errno::EIO) } else { Ok(content) }
    }

    fn number(&self, name: &Name) -> Result<usize, Errno> {
        self.names.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn make(&mut self, name: Name, kind: FileType, mode: u32) -> Result<FileAttr, Errno> {
        if self.names.contains_key(&name) {
            return Err(Errno::EEXIST);
        }
        let number = self.files.len();
        self.files.push(Content::new(kind, (mode & 0o7777) as u16));
        self.rename(vec![(name, Some(number))]);
        self.count()?;
        self.attributes(FIRST + number as u64)
    }

    fn remove(&mut self, name: Name) -> Result<(), Errno> {
        let node = FIRST + self.number(&name)? as u64;
        if self.names.keys().any(|(folder, _)| *folder == node) {
            return Err(Errno::ENOTEMPTY);
        }
        self.rename(vec![(name, None)]);
        self.count()
    }

    fn attributes(&self, node: u64) -> Result<FileAttr, Errno> {
        let (kind, perm, size, nlink) = match node.checked_sub(FIRST) {
            None => (FileType::Directory, 0o700, 0, 2),
            Some(number) => {
                let Content { kind, mode, now, .. } = self.files.get(number as usize).ok_or(Errno::ENOENT)?;
                let names = self.names.values().filter(|named| **named == number as usize).count();
                (*kind, *mode, now.len() as u64, names as u32)
            }
        };
        Ok(FileAttr {
            ino: INodeNo(node),
            size,
            blocks: size.div_ceil(SECTOR as u64),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: self.block_bytes,
            flags: 0,
        })
    }
}

fn name_in(folder: INodeNo, name: &OsStr) -> Name {
    (folder.0, name.to_owned())
}

fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn tell(reply: ReplyAttr, result: Result<FileAttr, Errno>) {
    match result {
        Ok(attributes) => reply.attr(&AT_ONCE, &attributes),
        Err(error) => reply.error(error),
    }
}

fn enter(reply: ReplyEntry, result: Result<FileAttr, Errno>) {
    match result {
        Ok(attributes) => reply.entry(&AT_ONCE, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Older kernels have less of it: then what is large comes in pieces.
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &Request, folder: INodeNo, name: &OsStr, reply: ReplyEntry) {
        enter(reply, self.with(|state| state.attributes(FIRST + state.number(&name_in(folder, name))? as u64)));
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        tell(reply, self.with(|state| state.attributes(node.0)));
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = |content: &mut Content| {
            content.mode = mode.map_or(content.mode, |mode| (mode & 0o7777) as u16);
            size.map(|bytes| Change::Size(bytes as usize))
        };
        let changed = self.change(node, change);
        tell(reply, changed.and_then(|()| self.with(|state| state.attributes(node.0))));
    }

    fn mknod(&self, _: &Request, folder: INodeNo, name: &OsStr, mode: u32, umask: u32, _: u32, reply: ReplyEntry) {
        let kind = match mode & libc::S_IFMT {
            libc::S_IFREG => FileType::RegularFile,
            libc::S_IFSOCK => FileType::Socket,
            _ => return reply.error(Errno::EPERM),
        };
        enter(reply, self.with(|state| state.make(name_in(folder, name), kind, mode & !umask)));
    }

    fn mkdir(&self, _: &Request, folder: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        enter(reply, self.with(|state| state.make(name_in(folder, name), FileType::Directory, mode & !umask)));
    }

    fn unlink(&self, _: &Request, folder: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.with(|state| state.remove(name_in(folder, name))));
    }

    fn rmdir(&self, _: &Request, folder: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.with(|state| state.remove(name_in(folder, name))));
    }

    fn rename(&self, _: &Request, from: INodeNo, name: &OsStr, to: INodeNo, new: &OsStr, flags: RenameFlags, reply: ReplyEmpty) {
        let (name, new) = (name_in(from, name), name_in(to, new));
        let rename = |state: &mut State| {
            let number = state.number(&name)?;
            if flags.contains(RenameFlags::RENAME_NOREPLACE) && state.names.contains_key(&new) {
                return Err(Errno::EEXIST);
            }
            if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
                return Err(Errno::EINVAL);
            }
            state.rename(vec![(name, None), (new, Some(number))]);
            state.count()
        };
        answer(reply, self.with(rename));
    }

    fn readdir(&self, _: &Request, folder: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = |state: &mut State| {
            let names = state.names.iter().filter(|((of, _), _)| *of == folder.0);
            let entries = names.map(|((_, name), number)| (name.clone(), *number, state.files[*number].kind));
            Ok(entries.collect::<Vec<_>>())
        };
        match self.with(list) {
            Err(error) => reply.error(error),
            Ok(entries) => {
                for (place, (name, number, kind)) in entries.into_iter().enumerate().skip(offset as usize) {
                    if reply.add(INodeNo(FIRST + number as u64), place as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
        }
    }

    fn fsyncdir(&self, _: &Request, folder: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let flush = |state: &mut State| {
            state.count()?;
            state.flush_names(folder.0);
            Ok(())
        };
        answer(reply, self.with(flush));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(2 * FREE, FREE, FREE, FREE, FREE, BLOCK_BYTES, 255, BLOCK_BYTES);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(&self, _: &Request, node: INodeNo, _: FileHandle, at: u64, size: u32, _: OpenFlags, _: Option<LockOwner>, reply: ReplyData) {
        let read = |state: &mut State| {
            let contents = &state.content(node)?.now;
            let start = (at as usize).min(contents.len());
            Ok(contents[start..(start + size as usize).min(contents.len())].to_vec())
        };
        match self.with(read) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        at: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let change = Change::Write(at as usize, data.to_vec());
        let mut state = lock(&self.0);
        let mut may_write = || {
            state.check()?;
            state.content(node)?;
            check_size(&change)
        };
        if let Err(error) = may_write() {
            return reply.error(error);
        }
        state.writes += 1;
        let file = (node.0 - FIRST) as usize;
        if state.writes.is_multiple_of(SLOW_ONE_IN) {
            state.under_way.push(UnderWay { file, change, reply });
            // Where this is the cut, all that is under way has been failed with it.
            let _ = state.count();
            return;
        }
        state.files[file].change(change);
        match state.count() {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(&self, _: &Request, node: INodeNo, _: FileHandle, at: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let allocate = |content: &mut Content| {
            let (start, end, size) = (at as usize, (at + length) as usize, content.now.len());
            if mode.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE) {
                return (start < size).then(|| Change::Write(start, vec![0; end.min(size) - start]));
            }
            (end > size && !mode.contains(FallocateFlags::KEEP_SIZE)).then_some(Change::Size(end))
        };
        answer(reply, self.change(node, allocate));
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let flush = |state: &mut State| {
            state.content(node)?;
            state.count()?;
            let content = state.content(node)?;
            match content.failing_flushes.checked_sub(1) {
                Some(left) => {
                    content.failing_flushes = left;
                    content.lose_all();
                    Err(Errno::EIO)
                }
                None => {
                    content.flush();
                    Ok(())
                }
            }
        };
        answer(reply, self.with(flush));
    }

    /// Of a descriptor that is closed.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}
