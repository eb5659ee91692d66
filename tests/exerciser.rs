//! Random operations on one file of a file system on the device, each compared with a model in memory: writes, reads, holes, zeroes, new
//! sizes, synchronisation. Reads come from the device: what the kernel keeps of the file is dropped before them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};

use crate::common::chance::Chance;
use crate::common::stand::{Stand, rounds};

const BYTES_MAX: u64 = 8 << 20;
/// Operations of one round.
const STEPS: u64 = 1500;

struct Exerciser {
    file: File,
    model: Vec<u8>,
    chance: Chance,
    seed: u64,
}

impl Exerciser {
    fn new(at: &Path, seed: u64) -> Exerciser {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(at.join("exercised")).unwrap();
        Exerciser { file, model: Vec::new(), chance: Chance::new(seed), seed }
    }

    /// A place, of bytes or of blocks as it comes.
    fn place(&mut self, end: u64, length_max: u64) -> (u64, u64) {
        let unit = [1, 512, 4096][self.chance.below(3) as usize];
        let offset = self.chance.below(end.max(1)) / unit * unit;
        (offset, (1 + self.chance.below(length_max)).next_multiple_of(unit).min(BYTES_MAX - offset))
    }

    fn step(&mut self, number: u64) {
        match self.chance.below(100) {
            0..45 => {
                let (offset, length) = self.place(BYTES_MAX, 64 << 10);
                let data = self.chance.bytes(length as usize);
                self.file.write_all_at(&data, offset).unwrap();
                self.grow(offset + length);
                self.model[offset as usize..(offset + length) as usize].copy_from_slice(&data);
            }
            45..75 => self.compare(number),
            75..83 => {
                let (offset, length) = self.place(BYTES_MAX, 256 << 10);
                fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length).unwrap();
                let end = (offset + length).min(self.model.len() as u64);
                self.model[offset.min(end) as usize..end as usize].fill(0);
            }
            83..89 => {
                let (offset, length) = self.place(BYTES_MAX, 256 << 10);
                fallocate(&self.file, FallocateFlags::ZERO_RANGE, offset, length).unwrap();
                self.grow(offset + length);
                self.model[offset as usize..(offset + length) as usize].fill(0);
            }
            89..93 => {
                let (size, _) = self.place(BYTES_MAX, 1);
                self.file.set_len(size).unwrap();
                self.model.resize(size as usize, 0);
            }
            93..98 => self.file.sync_data().unwrap(),
            _ => self.forget(),
        }
    }

    fn grow(&mut self, size: u64) {
        self.model.resize(self.model.len().max(size as usize), 0);
    }

    /// The kernel reads from the device again.
    fn forget(&mut self) {
        self.file.sync_all().unwrap();
        fadvise(&self.file, 0, None, Advice::DontNeed).unwrap();
    }

    fn compare(&mut self, number: u64) {
        let size = self.model.len() as u64;
        assert_eq!(self.file.metadata().unwrap().len(), size, "seed {}, step {number}", self.seed);
        let (offset, length) = self.place(size, 128 << 10);
        let mut read = vec![0; length.min(size.saturating_sub(offset)) as usize];
        self.file.read_exact_at(&mut read, offset).unwrap();
        let wrong = read.iter().zip(&self.model[offset as usize..]).position(|(read, model)| read != model);
        assert_eq!(wrong, None, "seed {}, step {number}: {} bytes at {offset}", self.seed, read.len());
    }

    fn compare_all(&mut self) {
        self.forget();
        let mut read = vec![0; self.model.len()];
        self.file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == self.model, "seed {}: the file as a whole", self.seed);
    }
}

#[test]
fn a_file_under_random_operations_is_what_the_model_says() {
    let mut stand = Stand::new(&["mkfs.ext4", "-q"], "noatime,discard");
    for seed in 0..rounds(2) {
        let mut exerciser = Exerciser::new(&stand.at(), seed);
        for number in 0..STEPS {
            exerciser.step(number);
        }
        exerciser.compare_all();
        // Synchronised: it survives the daemon's death.
        let model = exerciser.model;
        drop(exerciser.file);
        stand.kill_daemon();
        let at = stand.take_up_again();
        assert!(std::fs::read(at.join("exercised")).unwrap() == model, "seed {seed}: after a kill");
    }
    stand.finish(&["e2fsck", "-f", "-n"]);
}
