//! A volume that becomes larger.

use super::{Oracle, Version};
use crate::front::prefix::FIRST;

impl Oracle {
    /// Behind its end there is more, which holds these stamps, durably.
    pub fn grow(&mut self, stamps: impl Iterator<Item = u64>) {
        let version = |stamp| vec![Version { settled: true, ..Version::new(stamp, FIRST) }];
        self.atoms.extend(stamps.map(version));
        for marks in [&mut self.hurt, &mut self.unread].into_iter().filter(|marks| !marks.is_empty()) {
            marks.resize(self.atoms.len(), 0);
        }
    }
}
