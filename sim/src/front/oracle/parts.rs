//! A range of zeros that is too long for one turn of the engine is zeroed part by part, and a crash may come between two of them. The engine says of
//! which requests it has done a part; any other range survives as a whole or not at all.

use tidegate_engine::request::RequestId;

use super::{Broken, Oracle, Pending, Verdict, WRITE};

impl Oracle {
    /// Of this request a part was done. Broken: it could have been done at once.
    pub fn take_part(&mut self, id: RequestId) -> Verdict {
        let Some(Pending::Write { write, .. }) = self.pending.get(&id) else {
            return Err(Broken(format!("{id:?} is zeroed part by part, and is no write in flight")));
        };
        let write = *write as usize;
        let atoms = self.whole_blocks(self.writes[write].span).atoms;
        if self.writes[write].what == WRITE || atoms <= self.parts_beyond {
            return Err(Broken(format!("{id:?} is done part by part: {:?}", self.writes[write])));
        }
        self.writes[write].in_parts = true;
        Ok(())
    }
}
