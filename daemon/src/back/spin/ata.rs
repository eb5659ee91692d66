//! ATA commands for a disk's motor, inside SCSI's ATA PASS-THROUGH (16) (SAT-3, 12.2.2): CHECK POWER MODE, STANDBY IMMEDIATE, IDLE IMMEDIATE,
//! and what a disk says of itself (ACS-3).

use std::fs::File;
use std::time::Duration;

use tidegate_engine::op::{DeviceError, Power};

use super::sg::{Error, Reply, send};

const CHECK_POWER_MODE: u8 = 0xe5;
const STANDBY_IMMEDIATE: u8 = 0xe0;
const IDLE_IMMEDIATE: u8 = 0xe1;
const READ_VERIFY: u8 = 0x40;
const FLUSH_CACHE: u8 = 0xe7;
const IDENTIFY_DEVICE: u8 = 0xec;
const SMART: u8 = 0xb0;
const SMART_READ_DATA: u8 = 0xd0;

/// A question that is answered without the platters.
const SOON: Duration = Duration::from_secs(10);
/// To empty its cache and to stop.
const STOP: Duration = Duration::from_secs(60);
/// To come to speed: twice what the slowest need.
const WAKE: Duration = Duration::from_secs(60);

/// What a disk says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// It turns, or does not say that it does not; and its motor takes commands.
    pub has_motor: bool,
    /// Starts and stops in its life (SMART attribute 4), if it turns.
    pub starts: Option<u32>,
}

pub fn identify(disk: &File) -> Result<Identity, Error> {
    let mut data = [0; 512];
    let reply = send(disk, &reading(IDENTIFY_DEVICE, 0, 0), &mut data, SOON)?;
    if !reply.is_good() {
        return Err(Error::Device(DeviceError::Medium));
    }
    let mut smart = [0; 512];
    // That one lies on the platters: one that stands still is not asked.
    let turns = look(disk).is_ok_and(|power| power == Power::Turning);
    let told = turns && send(disk, &reading(SMART, SMART_READ_DATA, 0xc24f), &mut smart, SOON).is_ok_and(|reply| reply.is_good());
    Ok(Identity { has_motor: has_motor(&data), starts: if told { start_stop_count(&smart) } else { None } })
}

/// Empties the disk's cache and stops it.
pub fn stop(disk: &File) -> Result<Power, Error> {
    done(&send(disk, &plain(FLUSH_CACHE), &mut [], STOP)?)?;
    done(&send(disk, &plain(STANDBY_IMMEDIATE), &mut [], STOP)?)?;
    look(disk)
}

pub fn wake(disk: &File) -> Result<Power, Error> {
    done(&send(disk, &plain(IDLE_IMMEDIATE), &mut [], WAKE)?)?;
    if look(disk)? == Power::Standby {
        // Some wait with that until somebody wants something from the platters.
        done(&send(disk, &verify_first_sector(), &mut [], WAKE)?)?;
    }
    look(disk)
}

/// Wakes nothing.
pub fn look(disk: &File) -> Result<Power, Error> {
    let reply = send(disk, &plain(CHECK_POWER_MODE), &mut [], SOON)?;
    registers(&reply).filter(Registers::is_done).map(|registers| power(registers.count)).ok_or(Error::Device(DeviceError::Medium))
}

fn done(reply: &Reply) -> Result<(), Error> {
    let is_done = registers(reply).map_or(reply.is_good(), |registers| registers.is_done());
    if is_done { Ok(()) } else { Err(Error::Device(DeviceError::Medium)) }
}

/// What CHECK POWER MODE's count means. Standby_y (01h) and a cache that serves while the platters stand (40h) do not serve at once either.
fn power(count: u8) -> Power {
    match count {
        0x00 | 0x01 | 0x40 => Power::Standby,
        _ => Power::Turning,
    }
}

// --- commands ---

/// A command without data whose registers come back as sense data.
fn plain(command: u8) -> [u8; 16] {
    const NON_DATA: u8 = 3 << 1;
    const CHECK_CONDITION: u8 = 1 << 5;
    let mut bytes = [0; 16];
    (bytes[0], bytes[1], bytes[2], bytes[14]) = (0x85, NON_DATA, CHECK_CONDITION, command);
    bytes
}

/// A command that reads 512 bytes.
fn reading(command: u8, features: u8, lba_mid_high: u16) -> [u8; 16] {
    const PIO_IN: u8 = 4 << 1;
    const ONE_BLOCK_IN: u8 = 1 << 3 | 1 << 2 | 2;
    let [mid, high] = lba_mid_high.to_le_bytes();
    let mut bytes = [0; 16];
    (bytes[0], bytes[1], bytes[2], bytes[14]) = (0x85, PIO_IN, ONE_BLOCK_IN, command);
    (bytes[4], bytes[6], bytes[10], bytes[12]) = (features, 1, mid, high);
    bytes
}

fn verify_first_sector() -> [u8; 16] {
    const LBA: u8 = 1 << 6;
    let mut bytes = plain(READ_VERIFY);
    (bytes[6], bytes[13]) = (1, LBA);
    bytes
}

// --- answers ---

/// The registers after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registers {
    status: u8,
    count: u8,
}

impl Registers {
    /// Neither an error nor a fault of the device.
    fn is_done(&self) -> bool {
        self.status & 0b10_0001 == 0
    }
}

/// The registers, in a descriptor or in sense data of the fixed format (SAT-3, 12.2.2.6 and 12.2.2.7). Those of the fixed format have registers
/// only where they say so ("ATA pass-through information available"): else the same bytes are about something else.
fn registers(reply: &Reply) -> Option<Registers> {
    const INFORMATION_AVAILABLE: [u8; 2] = [0x00, 0x1d];
    let (sense, key) = (&reply.sense, reply.key()?);
    match sense.first()? & 0x7f {
        0x72 if sense.get(8) == Some(&0x09) => Some(Registers { status: *sense.get(21)?, count: *sense.get(13)? }),
        0x70 if key <= 1 && sense.get(12..14)? == INFORMATION_AVAILABLE => {
            Some(Registers { status: *sense.get(4)?, count: *sense.get(6)? })
        }
        _ => None,
    }
}

fn word(data: &[u8; 512], number: usize) -> u16 {
    u16::from_le_bytes([data[2 * number], data[2 * number + 1]])
}

/// The power management feature set is there (word 82, bit 3), and the nominal rotation rate (word 217) is not "does not rotate".
fn has_motor(identity: &[u8; 512]) -> bool {
    word(identity, 82) & 1 << 3 != 0 && word(identity, 217) != 1
}

/// Thirty attributes of twelve bytes from byte 2 on; the raw value is six bytes from the fifth on, of which vendors use the upper two otherwise.
fn start_stop_count(smart: &[u8; 512]) -> Option<u32> {
    let attribute = smart[2..362].chunks_exact(12).find(|attribute| attribute[0] == 4)?;
    Some(u32::from_le_bytes([attribute[5], attribute[6], attribute[7], attribute[8]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_sense(sense: &[u8]) -> Reply {
        Reply { status: 2, sense: sense.to_vec() }
    }

    /// A descriptor's bytes: code, length, extend, error, then each register behind its upper half.
    fn descriptor(count: u8, status: u8) -> Vec<u8> {
        let mut sense = vec![0x72, 0x01, 0x00, 0x1d, 0, 0, 0, 14, 0x09, 0x0c];
        sense.extend([0, 0, 0, count, 0, 0, 0, 0, 0, 0, 0x40, status]);
        sense
    }

    #[test]
    fn the_answer_to_check_power_mode_is_read_in_both_formats() {
        let fixed = [0x70, 0, 1, 0, 0x50, 0x40, 0xff, 10, 0, 0, 0, 0, 0x00, 0x1d, 0, 0, 0, 0];
        assert_eq!(registers(&with_sense(&fixed)), Some(Registers { status: 0x50, count: 0xff }));
        for (count, expected) in [(0x00, Power::Standby), (0x01, Power::Standby), (0x80, Power::Turning), (0xff, Power::Turning)] {
            let found = registers(&with_sense(&descriptor(count, 0x50))).unwrap();
            assert_eq!((found.is_done(), power(found.count)), (true, expected));
        }
    }

    #[test]
    fn an_error_a_fault_and_no_registers_are_no_answer() {
        assert!(!registers(&with_sense(&descriptor(0, 0x51))).unwrap().is_done());
        assert!(!registers(&with_sense(&descriptor(0, 0x70))).unwrap().is_done());
        assert_eq!(registers(&Reply { status: 0, sense: descriptor(0, 0x50) }), None);
        assert_eq!(registers(&with_sense(&[0x72, 5, 0x20, 0, 0, 0, 0, 0])), None, "an illegal request has no descriptor");
        assert_eq!(registers(&with_sense(&[])), None);
        // Of the fixed format: a reset (power on), an aborted command, a failed read, and what is too short to say what it is.
        for (key, code) in [(6, [0x29, 0x00]), (0xb, [0x00, 0x1d]), (3, [0x11, 0x00]), (1, [0x17, 0x01])] {
            let sense = [0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code[0], code[1], 0, 0, 0, 0];
            assert_eq!(registers(&with_sense(&sense)), None, "key {key}, {code:?}");
        }
        assert_eq!(registers(&with_sense(&[0x70, 0, 1, 0, 0x50, 0x40, 0, 10])), None);
    }

    #[test]
    fn a_solid_state_disk_has_no_motor() {
        let mut identity = [0; 512];
        assert!(!has_motor(&identity), "without power management");
        identity[164] = 1 << 3;
        assert!(has_motor(&identity), "one that does not say how fast it turns");
        (identity[434], identity[435]) = (0x20, 0x1c);
        assert!(has_motor(&identity), "7,200 a minute");
        (identity[434], identity[435]) = (1, 0);
        assert!(!has_motor(&identity));
    }

    #[test]
    fn starts_are_smarts_attribute_4() {
        let mut smart = [0; 512];
        assert_eq!(start_stop_count(&smart), None);
        smart[14..26].copy_from_slice(&[4, 0x32, 0, 98, 98, 0x39, 0x30, 0, 0, 7, 7, 0]);
        assert_eq!(start_stop_count(&smart), Some(12_345));
    }

    #[test]
    fn commands_lie_where_the_standard_wants_them() {
        assert_eq!(plain(CHECK_POWER_MODE), [0x85, 6, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe5, 0]);
        assert_eq!(reading(IDENTIFY_DEVICE, 0, 0), [0x85, 8, 0x0e, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xec, 0]);
        assert_eq!(reading(SMART, SMART_READ_DATA, 0xc24f), [0x85, 8, 0x0e, 0, 0xd0, 0, 1, 0, 0, 0, 0x4f, 0, 0xc2, 0, 0xb0, 0]);
        assert_eq!(verify_first_sector(), [0x85, 6, 0x20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x40, 0x40, 0]);
    }
}
