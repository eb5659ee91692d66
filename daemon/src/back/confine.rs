//! What the daemon gives up: privileges at its start, system calls once everything is open, and operations of io_uring, which no filter
//! of system calls sees. What it needs afterwards is listed here and nowhere else.
//!
//! A call outside the list fails as on a kernel that has not got it; in builds with debug assertions it ends the process, so that tests
//! find what is missing. None of it can be taken back while the process lives.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use super::spin::SG_IO;
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue};
use seccompiler::{SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition as If, SeccompFilter, SeccompRule};

/// What a start by root needs beyond what the owner of the files may do anyway: to write into folders of others (the state file), to listen
/// on ports below 1,024.
const KEPT_CAPABILITIES: [u32; 2] = [CAP_DAC_OVERRIDE, CAP_NET_BIND_SERVICE];
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_NET_BIND_SERVICE: u32 = 10;
/// ATA commands for a disk's motor: for the thread that sends them, and until it has been started.
const CAP_SYS_RAWIO: u32 = 17;
/// The highest number that this code knows (Linux 6.18: 40); those above, if any, are dropped too.
const CAPABILITIES_MAX: u32 = 63;
/// Version 3 of capset(2): 64 bits in two halves.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityHalf {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Gives up what no part of a daemon ever needs: core dumps and debuggers of the same user (they would see data and keys), new
/// privileges by `exec`, and all capabilities but two; three if there are `motors`, until [`give_up_raw_commands`]. Call it before any other
/// thread is started: they inherit it.
///
/// # Errors
/// The call that failed.
pub fn give_up_privileges(motors: bool) -> io::Result<()> {
    let for_motors = motors.then_some(CAP_SYS_RAWIO);
    let kept = || KEPT_CAPABILITIES.into_iter().chain(for_motors);
    prctl(libc::PR_SET_DUMPABLE, 0)?;
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `no_core` is a valid rlimit for the length of the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core) })?;
    for capability in (0..=CAPABILITIES_MAX).filter(|capability| !kept().any(|kept| kept == *capability)) {
        // Who may not drop one from this set has none that could be regained; numbers that the kernel does not know are none either.
        let _ = prctl(libc::PR_CAPBSET_DROP, u64::from(capability));
    }
    keep_capabilities(kept().fold(0, |bits, capability| bits | 1 << capability))
}

/// The threads of motors have been started: this one and all that it starts from now on send no such commands.
///
/// # Errors
/// The call that failed.
pub fn give_up_raw_commands() -> io::Result<()> {
    keep_capabilities(KEPT_CAPABILITIES.iter().fold(0, |bits, capability| bits | 1 << capability))
}

/// Of the capabilities that this process has, keeps those in `bits` (all of them below 32).
fn keep_capabilities(bits: u32) -> io::Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut halves = [CapabilityHalf::default(); 2];
    // SAFETY: version 3 reads and writes exactly two halves behind a header of this form; pid 0 is this thread.
    check(unsafe { libc::syscall(libc::SYS_capget, &header, halves.as_mut_ptr()) } as i32)?;
    let kept = halves[0].permitted & bits;
    halves = [CapabilityHalf { effective: kept, permitted: kept, inheritable: 0 }, CapabilityHalf::default()];
    // SAFETY: as above; the halves are only read.
    check(unsafe { libc::syscall(libc::SYS_capset, &header, halves.as_ptr()) } as i32)
}

/// From now on, in every thread of this process, only the system calls of a daemon that serves. Every file but the small ones (state, pid)
/// is open by then, and every socket listens. `motors`: disks are told to stop and to wake.
///
/// # Errors
/// One line: why the kernel took no filter.
pub fn give_up_system_calls(motors: bool) -> Result<(), String> {
    let filter = filter(motors).map_err(|error| error.to_string())?;
    let program: seccompiler::BpfProgram = filter.try_into().map_err(|error: seccompiler::BackendError| error.to_string())?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())
}

fn filter(motors: bool) -> Result<SeccompFilter, seccompiler::BackendError> {
    let outside = if cfg!(debug_assertions) { SeccompAction::KillProcess } else { SeccompAction::Errno(libc::ENOSYS as u32) };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    let mut only = |call, conditions: Vec<Vec<If>>| -> Result<(), seccompiler::BackendError> {
        let either: Result<Vec<_>, _> = conditions.into_iter().map(SeccompRule::new).collect();
        rules.insert(call, either?);
        Ok(())
    };
    let is = |argument, value: u64| If::new(argument, Length::Dword, Is::Eq, value);
    // Nothing that was written is ever executed.
    let no_code = || If::new(2, Length::Dword, Is::MaskedEq(libc::PROT_EXEC as u64), 0);
    only(libc::SYS_mmap, vec![vec![no_code()?]])?;
    only(libc::SYS_mprotect, vec![vec![no_code()?]])?;
    // systemd is told over one.
    only(libc::SYS_socket, vec![vec![is(0, libc::AF_UNIX as u64)?]])?;
    // What accepted sockets, terminals, and devices behind a thin volume are asked.
    let controls = [libc::FIONBIO, libc::TIOCOUTQ, libc::TCGETS, libc::TIOCGWINSZ, BLKZEROOUT, BLKDISCARD, BLKGETSIZE64];
    only(
        libc::SYS_ioctl,
        controls
            .into_iter()
            .chain(motors.then_some(SG_IO))
            .map(|control| Ok(vec![is(1, control)?]))
            .collect::<Result<_, seccompiler::BackendError>>()?,
    )?;
    // A thread's name.
    only(libc::SYS_prctl, vec![vec![is(0, libc::PR_SET_NAME as u64)?]])?;
    // The process ends itself, if at all.
    only(libc::SYS_tgkill, vec![vec![is(0, u64::from(std::process::id()))?]])?;
    let arch = ARCH.try_into()?;
    SeccompFilter::new(rules, outside, SeccompAction::Allow, arch)
}

/// `ioctl` that discards a range of a block device: offset and length in bytes.
pub(super) const BLKDISCARD: u64 = 0x1277;
const BLKZEROOUT: u64 = 0x127f;
const BLKGETSIZE64: u64 = 0x8008_1272;

/// Allowed with any arguments.
const ALLOWED: &[i64] = &[
    // Disks, sockets, files.
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_flock,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_connect,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    // The state file and the pid file; sockets that are removed at the end.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_fchmod,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    // Memory, threads, time, signals.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_membarrier,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Their older forms, where the machine has them.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(not(target_arch = "x86_64"))]
    libc::SYS_renameat,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
];

/// Of io_uring_register(2).
const IORING_UNREGISTER_FILES: u8 = 3;

/// Lets a ring that was set up disabled do what the disks and sockets need, and enables it. The files are registered by then. `discards`: a
/// block device may be told what it need not keep.
///
/// # Errors
/// The kernel is older than Linux 5.10.
pub fn restrict_ring(ring: &IoUring, discards: bool) -> io::Result<()> {
    let operations = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Statx::CODE,
        opcode::Fallocate::CODE,
        opcode::PollAdd::CODE,
        opcode::PollRemove::CODE,
    ];
    let discard = discards.then_some(opcode::UringCmd16::CODE);
    let mut restrictions: Vec<Restriction> = operations.into_iter().chain(discard).map(Restriction::sqe_op).collect();
    // Disks are named by their place among the registered files, sockets by their descriptors. Disks that sleep are asked from a thread.
    restrictions.push(Restriction::sqe_flags_allowed((squeue::Flags::FIXED_FILE | squeue::Flags::ASYNC).bits()));
    // A ring that has done its work lets go of its files.
    restrictions.push(Restriction::register_op(IORING_UNREGISTER_FILES));
    ring.submitter().register_restrictions(&mut restrictions)?;
    ring.submitter().register_enable_rings()
}

fn prctl(option: i32, value: u64) -> io::Result<()> {
    // SAFETY: the options used here take one number and touch no memory of ours.
    check(unsafe { libc::prctl(option, value as libc::c_ulong, 0, 0, 0) })
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
