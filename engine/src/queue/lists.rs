//! Lists of what waits: joined at the end, left anywhere, both in O(1) whatever the depth. An entry is in one list at most.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
    list: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

/// Lists by number, of entries by number; both are small.
#[derive(Default)]
pub struct Lists {
    links: Vec<Link>,
    ends: Vec<Ends>,
}

impl Lists {
    pub fn new(lists: usize) -> Self {
        Lists { links: Vec::new(), ends: vec![Ends { first: NONE, last: NONE }; lists] }
    }

    /// An entry that is in no list becomes the last of this one.
    pub fn push(&mut self, list: usize, entry: usize) {
        if self.ends.len() <= list {
            self.ends.resize(list + 1, Ends { first: NONE, last: NONE });
        }
        if self.links.len() <= entry {
            self.links.resize(entry + 1, Link { before: NONE, after: NONE, list: NONE });
        }
        assert!(self.links[entry].list == NONE, "an entry is in one list");
        let Ends { first, last } = &mut self.ends[list];
        self.links[entry] = Link { before: *last, after: NONE, list: list as u32 };
        match *last {
            NONE => *first = entry as u32,
            last => self.links[last as usize].after = entry as u32,
        }
        *last = entry as u32;
    }

    /// Takes an entry out of its list, which is told.
    pub fn remove(&mut self, entry: usize) -> usize {
        let Link { before, after, list } = self.links[entry];
        assert!(list != NONE, "an entry leaves the list that it is in");
        match before {
            NONE => self.ends[list as usize].first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.ends[list as usize].last = before,
            after => self.links[after as usize].before = before,
        }
        self.links[entry].list = NONE;
        list as usize
    }

    /// Takes the first entry.
    pub fn pop(&mut self, list: usize) -> Option<usize> {
        let first = self.first(list)?;
        self.remove(first);
        Some(first)
    }

    pub fn first(&self, list: usize) -> Option<usize> {
        self.ends.get(list).map(|ends| ends.first).filter(|&first| first != NONE).map(|first| first as usize)
    }

    pub fn is_empty(&self, list: usize) -> bool {
        self.first(list).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_may_leave_from_anywhere() {
        let mut lists = Lists::new(2);
        (0..5).for_each(|entry| lists.push(0, entry));
        lists.push(1, 7);
        assert_eq!([2, 0, 4].map(|entry| lists.remove(entry)), [0; 3]);
        lists.push(0, 2);
        assert_eq!(std::iter::from_fn(|| lists.pop(0)).collect::<Vec<_>>(), [1, 3, 2]);
        assert!(lists.is_empty(0) && lists.first(1) == Some(7));
    }
}
