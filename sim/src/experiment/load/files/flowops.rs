//! Flowops: what a thread does with its file, what that changes in the page cache, and what it waits for. An operation that has to wait is
//! tried again from its beginning, so it changes nothing before.

use super::workload::{Flowop, LOG_BYTES, READS_PER_LOG, READS_PER_WRITE};
use super::{Ask, Event, Files, PAGE, Purpose, READ_PAGES, TURN, Thread, cut};
use std::collections::VecDeque;
use tidegate_engine::time::{Duration, Instant};

impl Files {
    /// Pages of the page cache that a file has.
    pub(super) fn units(&self, file: u32) -> u64 {
        self.lengths[file as usize].div_ceil(self.shape.page_bytes)
    }

    /// A thread goes on until it waits, or has had its turn.
    pub(super) fn run(&mut self, now: Instant, thread: usize) {
        let mut used = Duration::ZERO;
        loop {
            let Thread { program, at, .. } = self.threads[thread];
            if self.waits(now, thread, program[at], used > Duration::ZERO) {
                if used > Duration::ZERO {
                    self.take_processor(now, thread, used);
                }
                return;
            }
            self.threads[thread].at = (at + 1) % program.len();
            self.operations += 1;
            used.0 += self.shape.cpu.0;
            if used >= TURN || self.threads[thread].at == 0 {
                return self.take_processor(now, thread, used);
            }
        }
    }

    /// The processor that is free first works for it.
    fn take_processor(&mut self, now: Instant, thread: usize, used: Duration) {
        let first = self.processors.iter_mut().min().expect("there are processors");
        *first = (*first).max(now) + used;
        let when = *first;
        self.note(when, Event::Thread(thread));
    }

    /// Does an operation. True: it has to wait for something, and is tried again then. `later`: it would, and begins only when the processor
    /// time used so far has passed.
    fn waits(&mut self, now: Instant, thread: usize, op: Flowop, later: bool) -> bool {
        let file = self.threads[thread].file;
        match op {
            Flowop::Create => self.create(thread),
            Flowop::WriteWhole => return self.write_whole(now, thread, later),
            Flowop::Append => return self.append(now, thread, later),
            Flowop::Pick => self.threads[thread].file = self.pick(),
            Flowop::Close | Flowop::Stat => {}
            Flowop::ReadWhole => return self.read(now, thread, 0, self.units(file), later),
            Flowop::Delete => self.delete(),
            Flowop::Fsync => return self.fsync(now, thread, later),
            Flowop::AppendLog => return self.append_log(now, thread, later),
            Flowop::ReadRandom => return self.read_random(now, thread, later),
            Flowop::WriteRandom => return self.write_random(now, thread, later),
            Flowop::WriteLog => return self.write_log(now, thread, later),
        }
        false
    }

    fn pick(&mut self) -> u32 {
        self.existing[self.chance.below(self.existing.len() as u64) as usize]
    }

    fn create(&mut self, thread: usize) {
        if self.missing.is_empty() {
            self.threads[thread].length = self.shape.file_bytes;
            self.threads[thread].file = self.pick();
            return;
        }
        let at = self.chance.below(self.missing.len() as u64) as usize;
        let file = self.missing.swap_remove(at);
        self.existing.push(file);
        let bytes = self.shape.file_bytes;
        self.lengths[file as usize] = 0;
        (self.threads[thread].file, self.threads[thread].length) = (file, self.chance.between(bytes / 2, bytes * 3 / 2));
        self.commit.changed(self.layout.metadata(file, true));
    }

    fn delete(&mut self) {
        if self.existing.len() < 2 {
            return;
        }
        let at = self.chance.below(self.existing.len() as u64) as usize;
        let file = self.existing.swap_remove(at);
        self.missing.push(file);
        self.memory.forget(file, self.units(file));
        self.commit.changed(self.layout.metadata(file, true));
    }

    fn write(&mut self, now: Instant, thread: usize, first: u64, units: u64, later: bool) -> bool {
        if self.is_throttled() {
            if !later {
                self.throttled.push(thread);
                self.relieve(now);
            }
            return true;
        }
        let file = self.threads[thread].file;
        for unit in first..first + units {
            self.memory.write(now, file, unit);
            self.commit.wrote(file, unit);
        }
        self.commit.changed(self.layout.metadata(file, false));
        false
    }

    fn write_whole(&mut self, now: Instant, thread: usize, later: bool) -> bool {
        let Thread { file, length, .. } = self.threads[thread];
        let waits = self.write(now, thread, 0, length.div_ceil(self.shape.page_bytes), later);
        if !waits {
            self.lengths[file as usize] = length;
        }
        waits
    }

    fn append(&mut self, now: Instant, thread: usize, later: bool) -> bool {
        let file = self.threads[thread].file;
        let (length, most) = (self.lengths[file as usize], self.spec.file_pages() * PAGE);
        // A file that is full is written from its beginning.
        let start = if length + self.shape.append_bytes > most { 0 } else { length };
        let (first, last) = (start / self.shape.page_bytes, (start + self.shape.append_bytes - 1) / self.shape.page_bytes);
        let waits = self.write(now, thread, first, last - first + 1, later);
        if !waits {
            self.lengths[file as usize] = (start + self.shape.append_bytes).max(length.min(most));
        }
        waits
    }

    fn read(&mut self, now: Instant, thread: usize, first: u64, units: u64, later: bool) -> bool {
        let file = self.threads[thread].file;
        let missing: Vec<(u32, u64)> =
            (first..first + units).filter(|&unit| !self.memory.has(file, unit)).map(|unit| (file, unit)).collect();
        if missing.is_empty() {
            return false;
        }
        if !later {
            let runs = self.runs(&missing);
            self.threads[thread].reading = runs.into_iter().flat_map(|(first, pages)| cut(first, pages, READ_PAGES)).collect();
            missing.iter().for_each(|&(file, unit)| self.memory.keep(file, unit));
            self.read_next(now, thread);
        }
        true
    }

    fn read_next(&mut self, now: Instant, thread: usize) {
        if let Some((first, pages)) = self.threads[thread].reading.pop_front() {
            self.ask(now, Ask::Read, first, pages, Purpose::Read { thread });
        }
    }

    pub(super) fn go_on_reading(&mut self, now: Instant, thread: usize) {
        if self.threads[thread].reading.is_empty() {
            self.note(now, Event::Thread(thread));
        } else {
            self.read_next(now, thread);
        }
    }

    fn fsync(&mut self, now: Instant, thread: usize, later: bool) -> bool {
        if std::mem::take(&mut self.threads[thread].durable) {
            return false;
        }
        if !later {
            self.commit.wait(thread);
            self.begin_commit(now, false);
        }
        true
    }

    /// The log of the web server, one thread at a time. ext3 looks up what is free in each block group that it comes to.
    fn append_log(&mut self, now: Instant, thread: usize, later: bool) -> bool {
        if later {
            return true;
        }
        if self.log_holder.is_some_and(|holder| holder != thread) {
            if !self.log_queue.contains(&thread) {
                self.log_queue.push_back(thread);
            }
            return true;
        }
        self.log_holder = Some(thread);
        let log = self.shape.files;
        let place = self.layout.page(log, self.log_bytes / PAGE);
        let bitmap = self.layout.bitmap(place);
        if let Some(page) = bitmap.filter(|_| bitmap != self.log_group) {
            self.log_group = bitmap;
            self.ask(now, Ask::Read, page, 1, Purpose::Read { thread });
            return true;
        }
        self.threads[thread].file = log;
        if self.write(now, thread, self.log_bytes / self.shape.page_bytes, 1, false) {
            return true;
        }
        self.log_bytes += self.shape.append_bytes;
        self.log_holder = None;
        if let Some(next) = self.log_queue.pop_front() {
            self.log_holder = Some(next);
            self.note(now, Event::Thread(next));
        }
        false
    }

    fn read_random(&mut self, now: Instant, thread: usize, later: bool) -> bool {
        if !std::mem::replace(&mut self.threads[thread].granted, true) {
            self.threads[thread].file = self.pick();
            let page = self.chance.below(self.units(self.threads[thread].file));
            self.threads[thread].reading = VecDeque::from([(page, 0)]);
        }
        if let Some(&(page, 0)) = self.threads[thread].reading.front() {
            // It may have to begin a little later, and reads the same page then.
            let waits = self.read(now, thread, page, 1, later);
            if waits {
                return true;
            }
            self.threads[thread].reading.clear();
        }
        self.threads[thread].granted = false;
        self.reads += 1;
        let hungry = [self.reads.is_multiple_of(READS_PER_WRITE), self.reads.is_multiple_of(READS_PER_LOG)];
        for _ in hungry.into_iter().filter(|is| *is) {
            if let Some(next) = self.hungry.pop_front() {
                self.note(now, Event::Thread(next));
            }
        }
        false
    }

    /// True: it has not got its grant yet, and waits for it in the queue.
    fn must_wait_for_reads(&mut self, thread: usize) -> bool {
        if std::mem::take(&mut self.threads[thread].granted) {
            return false;
        }
        self.threads[thread].granted = true;
        self.hungry.push_back(thread);
        true
    }

    fn write_random(&mut self, now: Instant, thread: usize, later: bool) -> bool {
        if later {
            return true;
        }
        if self.must_wait_for_reads(thread) {
            return true;
        }
        let file = self.pick();
        self.threads[thread].file = file;
        let page = self.chance.below(self.units(file));
        self.memory.write(now, file, page);
        false
    }

    fn write_log(&mut self, now: Instant, thread: usize, later: bool) -> bool {
        if later {
            return true;
        }
        if std::mem::take(&mut self.threads[thread].durable) {
            return false;
        }
        if self.must_wait_for_reads(thread) {
            return true;
        }
        let log = self.shape.files;
        self.threads[thread].file = log;
        let units = self.shape.append_bytes / self.shape.page_bytes;
        let first = self.log_bytes / self.shape.page_bytes;
        for unit in first..first + units {
            self.memory.write(now, log, unit);
            self.commit.wrote(log, unit);
        }
        self.log_bytes = (self.log_bytes + self.shape.append_bytes) % LOG_BYTES;
        self.commit.changed(self.layout.metadata(log, false));
        self.commit.wait(thread);
        self.begin_commit(now, false);
        true
    }
}
