//! What the file says, as the daemon takes it: what it leaves out is `None`.

use tidegate_daemon::volume::Knobs;
use tidegate_engine::config;

use super::{Allocation, Convert, File, WhenFull};

impl File {
    pub(super) fn knobs(&self) -> Knobs {
        Knobs {
            free_floor: self.gate.free_floor.map(|share| share.0),
            reserve: self.gate.reserve.map(|share| share.0),
            dirty_high: self.gate.dirty_high.map(|share| share.0),
            wait: self.gate.wait.map(|span| span.0),
            max_dirty_age: self.gate.max_dirty_age.map(|span| span.0),
            destage_depth: self.gate.destage_depth.map(|count| count.0),
            destage_batch: self.gate.destage_batch.map(|size| size.0),
            ram: self.memory.ram.map(|size| size.0),
            memory_policy: self.memory.policy.map(|policy| policy.0),
            window: self.log.window.map(|size| size.0),
            dirty_ram: self.log.dirty_ram.map(|size| size.0),
            dirty_ram_least: self.log.dirty_ram_least.map(|size| size.0),
            flush_age: self.log.flush_age.map(|span| span.0),
            fill: self.log.fill,
            allocation: self.log.allocation.map(|allocation| match allocation {
                Allocation::ReadWrite => config::Allocation::ReadWrite,
                Allocation::ReadOnly => config::Allocation::ReadOnly,
                Allocation::SmallWrites => config::Allocation::SmallWrites,
            }),
            convert: self.log.convert.map(|convert| match convert {
                Convert::Size => config::Convert::Size,
                Convert::Randomness => config::Convert::Randomness,
            }),
            convert_max: self.log.convert_max.map(|sectors| sectors.0 as u64),
            split: self.log.split,
            commit_home: self.log.commit_home,
            read_around: self.log.read_around,
            read_ahead: self.log.read_ahead.map(|size| size.0),
            when_full: self.log.when_full.map(|when_full| match when_full {
                WhenFull::Wait => config::WhenFull::Wait,
                WhenFull::Through => config::WhenFull::Through,
            }),
            requests: self.limits.requests.map(|count| count.0),
            bytes: self.limits.bytes.map(|size| size.0),
            fence_samples: self.fence.samples.map(|samples| samples.0),
            mode: self.mode.map(|mode| mode.0),
            stall_timeout: self.limits.stall_timeout.map(|span| span.0),
            poll: self.limits.poll.map(|span| span.0),
            front_threads: self.limits.front_threads.map(|threads| threads.0),
            scrub_rate: self.scrub.rate.map(|size| size.0),
            rated_tbw: self.wear.rated_tbw.map(|size| size.0),
            discard: self.wear.discard,
            queues: [self.queue.cache, self.queue.origin].map(|queue| queue.map(|scheduler| scheduler.0)),
            lanes: self.queue.lanes.map(|lanes| lanes.0),
            daily_write_budget: self.wear.daily_write_budget.map(|size| size.0),
        }
    }
}
