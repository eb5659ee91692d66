//! `SG_IO`: one SCSI command to a disk, and its answer (Linux, `scsi/sg.h`, version 3).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tidegate_engine::op::DeviceError;

pub const SG_IO: u64 = 0x2285;
const NOTHING: libc::c_int = -1;
const FROM_DEVICE: libc::c_int = -3;
/// As much as a disk says of a failure, and of an ATA command's outcome.
const SENSE_BYTES: usize = 64;

#[repr(C)]
struct Header {
    interface_id: libc::c_int,
    direction: libc::c_int,
    command_bytes: u8,
    sense_bytes_max: u8,
    pieces: u16,
    data_bytes: u32,
    data: *mut u8,
    command: *const u8,
    sense: *mut u8,
    timeout_ms: u32,
    flags: u32,
    pack_id: libc::c_int,
    user: *mut libc::c_void,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_bytes: u8,
    host_status: u16,
    driver_status: u16,
    left: libc::c_int,
    duration_ms: u32,
    info: u32,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// What is no SCSI or ATA disk takes no such commands.
    Untaken,
    /// The system lets this process send no such command.
    Forbidden,
    Device(DeviceError),
}

/// What a disk has answered.
#[derive(Clone, Debug)]
pub struct Reply {
    /// SCSI's status byte.
    pub status: u8,
    pub sense: Vec<u8>,
}

impl Reply {
    const CHECK_CONDITION: u8 = 2;
    const UNIT_ATTENTION: u8 = 6;

    pub fn is_good(&self) -> bool {
        self.status == 0
    }

    pub fn has_sense(&self) -> bool {
        self.status == Reply::CHECK_CONDITION
    }

    /// What kind of thing the disk has to say, in either format of sense data.
    pub fn key(&self) -> Option<u8> {
        match self.sense.first().filter(|_| self.has_sense())? & 0x7f {
            0x70 | 0x71 => Some(self.sense.get(2)? & 0xf),
            0x72 | 0x73 => Some(self.sense.get(1)? & 0xf),
            _ => None,
        }
    }
}

/// Sends `command` and waits for its end; what the disk gives goes into `into`.
pub fn send(disk: &File, command: &[u8], into: &mut [u8], timeout: Duration) -> Result<Reply, Error> {
    heard(|| send_once(disk, command, into, timeout))
}

/// A disk to which something has happened (a reset, another medium) says that first, once, and has not carried out what it was told then.
fn heard(mut tell: impl FnMut() -> Result<Reply, Error>) -> Result<Reply, Error> {
    match tell()? {
        reply if reply.key() == Some(Reply::UNIT_ATTENTION) => tell(),
        reply => Ok(reply),
    }
}

fn send_once(disk: &File, command: &[u8], into: &mut [u8], timeout: Duration) -> Result<Reply, Error> {
    let mut sense = [0u8; SENSE_BYTES];
    let mut header = Header {
        interface_id: libc::c_int::from(b'S'),
        direction: if into.is_empty() { NOTHING } else { FROM_DEVICE },
        command_bytes: command.len() as u8,
        sense_bytes_max: SENSE_BYTES as u8,
        pieces: 0,
        data_bytes: into.len() as u32,
        data: into.as_mut_ptr(),
        command: command.as_ptr(),
        sense: sense.as_mut_ptr(),
        timeout_ms: timeout.as_millis() as u32,
        flags: 0,
        pack_id: 0,
        user: std::ptr::null_mut(),
        status: 0,
        masked_status: 0,
        message_status: 0,
        sense_bytes: 0,
        host_status: 0,
        driver_status: 0,
        left: 0,
        duration_ms: 0,
        info: 0,
    };
    // SAFETY: the header has the kernel's layout; command, data and sense live across the call and are as long as it says. The kernel only
    // reads the command.
    if unsafe { libc::ioctl(disk.as_raw_fd(), SG_IO, &raw mut header) } != 0 {
        return Err(match io::Error::last_os_error().raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::Forbidden,
            Some(libc::ENODEV | libc::ENXIO) => Error::Device(DeviceError::Gone),
            _ => Error::Untaken,
        });
    }
    // The adapter did not get it through: no connection, a timeout, a reset.
    match header.host_status {
        0 => {}
        1 => return Err(Error::Device(DeviceError::Gone)),
        _ => return Err(Error::Device(DeviceError::Medium)),
    }
    Ok(Reply { status: header.status, sense: sense[..usize::from(header.sense_bytes).min(SENSE_BYTES)].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_as_long_as_the_kernels() {
        assert_eq!(size_of::<Header>(), if cfg!(target_pointer_width = "64") { 88 } else { 64 });
    }

    /// How often a disk is told something that answers so, and what is taken for its answer.
    fn told(answers: &[(u8, &[u8])]) -> (usize, Reply) {
        let mut told = 0;
        let reply = heard(|| {
            told += 1;
            Ok(Reply { status: answers[told - 1].0, sense: answers[told - 1].1.to_vec() })
        });
        (told, reply.unwrap())
    }

    #[test]
    fn a_disk_that_first_says_what_has_happened_to_it_is_told_once_more() {
        let (reset, registers): (&[u8], &[u8]) = (&[0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0], &[0x72, 1, 0, 0x1d]);
        let (times, reply) = told(&[(2, reset), (2, registers), (0, &[])]);
        assert_eq!((times, reply.key()), (2, Some(1)));
        let (times, reply) = told(&[(2, &[0x72, 6, 0x29, 0]), (0, &[])]);
        assert!(times == 2 && reply.is_good());
        assert_eq!(told(&[(2, reset), (2, reset), (0, &[])]).0, 2, "no more than that");
        assert_eq!(told(&[(0, reset), (0, &[])]).0, 1, "without an error the data say nothing");
        assert_eq!(told(&[(2, registers), (0, &[])]).0, 1);
    }

    #[test]
    fn a_file_takes_no_commands() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(send(&file, &[0; 6], &mut [], Duration::from_secs(1)).unwrap_err(), Error::Untaken);
    }
}
