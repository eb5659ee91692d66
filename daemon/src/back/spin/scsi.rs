//! SCSI commands for a disk's motor: START STOP UNIT, and what tells whether it turns, TEST UNIT READY and REQUEST SENSE (SBC-3, SPC-4).

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use tidegate_engine::op::{DeviceError, Power};

use super::disk::is_started_for_others;
use super::sg::{Error, Reply, send};

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 64, 0];
const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A power condition.
const ACTIVE: u8 = 1;

const SOON: Duration = Duration::from_secs(10);
const SLOWLY: Duration = Duration::from_secs(60);

const NOT_READY: u8 = 2;

/// How it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// By the power condition "standby": what is read or written wakes it.
    Standby,
    /// By START = 0: who reads or writes before it was started hears that it is not ready, unless the system starts it for him.
    Unit,
}

impl Stop {
    /// Which of them this disk knows: of one that turns, asked by naming the condition that it is in; one that stands still says how it was
    /// stopped, and is not woken.
    pub fn found(disk: &File, path: &Path) -> Result<Stop, Error> {
        let is_started = is_started_for_others(path);
        match sense(disk)?.and_then(Sense::stopped) {
            Some(Stop::Standby) => return Ok(Stop::Standby),
            Some(Stop::Unit) if is_started => return Ok(Stop::Unit),
            // Nobody could read one that was stopped so, and is not started for who reads it.
            Some(Stop::Unit) | None => {}
        }
        match send(disk, &start_stop(ACTIVE, true), &mut [], SLOWLY)?.is_good() {
            true => Ok(Stop::Standby),
            false if is_started => Ok(Stop::Unit),
            false => Err(Error::Untaken),
        }
    }
}

pub fn stop(disk: &File, way: Stop) -> Result<Power, Error> {
    const STANDBY: u8 = 3;
    done(&send(disk, &SYNCHRONIZE_CACHE, &mut [], SLOWLY)?)?;
    let command = match way {
        Stop::Standby => start_stop(STANDBY, false),
        Stop::Unit => start_stop(0, false),
    };
    done(&send(disk, &command, &mut [], SLOWLY)?)?;
    look(disk)
}

pub fn wake(disk: &File, way: Stop) -> Result<Power, Error> {
    let command = match way {
        Stop::Standby => start_stop(ACTIVE, true),
        Stop::Unit => start_stop(0, true),
    };
    done(&send(disk, &command, &mut [], SLOWLY)?)?;
    look(disk)
}

/// Wakes nothing.
pub fn look(disk: &File) -> Result<Power, Error> {
    Ok(sense(disk)?.and_then(Sense::power).unwrap_or(Power::Turning))
}

/// What it says of itself, if anything: why it is not ready, or what state it is in.
fn sense(disk: &File) -> Result<Option<Sense>, Error> {
    let unclear = Err(Error::Device(DeviceError::Medium));
    let reply = send(disk, &TEST_UNIT_READY, &mut [], SOON)?;
    if let Some(sense) = Sense::of(&reply) {
        return if sense.power().is_some() { Ok(Some(sense)) } else { unclear };
    }
    let mut data = [0; 64];
    if send(disk, &REQUEST_SENSE, &mut data, SOON)?.is_good() { Ok(Sense::parse(&data)) } else { unclear }
}

fn done(reply: &Reply) -> Result<(), Error> {
    if reply.is_good() { Ok(()) } else { Err(Error::Device(DeviceError::Medium)) }
}

/// START STOP UNIT, which ends when it is done. A condition leaves START without a meaning; where it is not known, START = 0 would be a stop.
fn start_stop(condition: u8, start: bool) -> [u8; 6] {
    [0x1b, 0, 0, 0, condition << 4 | u8::from(start), 0]
}

/// Why a command was not carried out, or what state the disk is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sense {
    key: u8,
    /// Additional sense code and its qualifier.
    code: (u8, u8),
}

impl Sense {
    fn of(reply: &Reply) -> Option<Sense> {
        if reply.has_sense() { Sense::parse(&reply.sense) } else { None }
    }

    fn parse(sense: &[u8]) -> Option<Sense> {
        match sense.first()? & 0x7f {
            0x70 => Some(Sense { key: sense.get(2)? & 0xf, code: (*sense.get(12)?, *sense.get(13)?) }),
            0x72 => Some(Sense { key: sense.get(1)? & 0xf, code: (*sense.get(2)?, *sense.get(3)?) }),
            _ => None,
        }
    }

    /// How it was stopped, if it stands still.
    fn stopped(self) -> Option<Stop> {
        let way = if self.code.0 == 0x5e { Stop::Standby } else { Stop::Unit };
        (self.power() == Some(Power::Standby)).then_some(way)
    }

    /// What it says of the motor; none: nothing.
    fn power(self) -> Option<Power> {
        match (self.key, self.code) {
            // A start is wanted first.
            (NOT_READY, (0x04, 0x02)) => Some(Power::Standby),
            // It is on its way up.
            (NOT_READY, (0x04, 0x01)) => Some(Power::Turning),
            // Low power: standby_z and standby_y, each by a timer or by a command; idle turns.
            (_, (0x5e, 0x02 | 0x04 | 0x09 | 0x0a)) => Some(Power::Standby),
            (_, (0x5e, _)) | (0, _) => Some(Power::Turning),
            // Among them that something has happened to it (6), which says nothing of the motor.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power(key: u8, code: u8, qualifier: u8) -> Option<Power> {
        let fixed = Sense::parse(&[0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0]);
        let described = Sense::parse(&[0x72, key, code, qualifier, 0, 0, 0, 0]);
        assert_eq!(fixed, described);
        fixed.and_then(Sense::power)
    }

    #[test]
    fn sense_data_tell_what_the_motor_does() {
        assert_eq!(power(2, 0x04, 0x02), Some(Power::Standby), "stopped");
        assert_eq!(power(2, 0x04, 0x01), Some(Power::Turning), "becoming ready");
        assert_eq!(power(0, 0x5e, 0x04), Some(Power::Standby), "standby, by a command");
        assert_eq!(power(0, 0x5e, 0x03), Some(Power::Turning), "idle, by a command");
        assert_eq!(power(0, 0, 0), Some(Power::Turning), "nothing to tell");
        assert_eq!(power(6, 0x29, 0), None, "that it was reset says nothing of the motor");
        assert_eq!(power(3, 0x11, 0), None, "a bad medium says nothing of the motor");
        let stopped = |key, code| Sense { key, code }.stopped();
        assert_eq!((stopped(2, (0x04, 0x02)), stopped(0, (0x5e, 0x04))), (Some(Stop::Unit), Some(Stop::Standby)));
        assert_eq!((stopped(2, (0x04, 0x01)), stopped(0, (0x5e, 0x03)), stopped(0, (0, 0))), (None, None, None));
        assert_eq!(Sense::parse(&[]), None);
        assert_eq!(Sense::parse(&[0x70, 0, 2]), None);
    }

    #[test]
    fn commands_lie_where_the_standard_wants_them() {
        assert_eq!(start_stop(3, false), [0x1b, 0, 0, 0, 0x30, 0]);
        assert_eq!(start_stop(0, true), [0x1b, 0, 0, 0, 1, 0]);
    }
}
