//! The naive thing: a volume as an array of atoms, each with everything it may read as.

use std::collections::HashSet;

use tidegate_engine::block::Span;

/// Of no command that could be acknowledged.
const NOBODY: u64 = u64::MAX;

/// One thing that was written to an atom: by which command, and what.
#[derive(Clone, Copy, Debug)]
struct Written {
    by: u64,
    stamp: u64,
}

/// The first entry is certain to survive, the last is what was written last.
#[derive(Clone, Debug)]
struct Atom {
    history: Vec<Written>,
    /// A crash or an error has left it open which of them it is, until it is read.
    open: bool,
    /// It was an error: what is read is what is there, but the next crash may still show any of them.
    failed: bool,
}

pub struct Model {
    atoms: Vec<Atom>,
    /// Commands that were answered without an error.
    acknowledged: HashSet<u64>,
}

impl Model {
    pub fn new(atoms: u64, first: impl Fn(u64) -> u64) -> Model {
        let atom = |atom| Atom { history: vec![Written { by: 0, stamp: first(atom) }], open: false, failed: false };
        Model { atoms: (0..atoms).map(atom).collect(), acknowledged: HashSet::from([0]) }
    }

    fn span(&mut self, span: Span) -> impl Iterator<Item = (u64, &mut Atom)> {
        let atoms = &mut self.atoms[span.start as usize..span.end() as usize];
        (span.start..).zip(atoms)
    }

    /// A command that writes is about to be sent: the atoms read as it says, whatever they were before.
    pub fn write(&mut self, by: u64, span: Span, stamp: impl Fn(u64) -> u64) {
        for (at, atom) in self.span(span) {
            atom.history.push(Written { by, stamp: stamp(at) });
            (atom.open, atom.failed) = (false, false);
        }
    }

    pub fn acknowledge(&mut self, by: u64) {
        self.acknowledged.insert(by);
    }

    /// It failed: its atoms may hold it or not.
    pub fn fail(&mut self, span: Span) {
        self.span(span).for_each(|(_, atom)| (atom.open, atom.failed) = (true, true));
    }

    /// What a FLUSH that is sent now promises.
    pub fn acknowledged(&self) -> HashSet<u64> {
        self.acknowledged.clone()
    }

    /// The FLUSH is answered: of these commands, the last of each atom is certain.
    pub fn flushed(&mut self, promised: &HashSet<u64>) {
        for atom in &mut self.atoms {
            // What was read once is certain anyway; it stands first.
            let certain = atom.history.iter().rposition(|written| promised.contains(&written.by)).unwrap_or(0);
            atom.history.drain(..certain);
        }
    }

    /// What was not flushed may be gone, and no later FLUSH brings it back.
    pub fn crash(&mut self) {
        self.acknowledged = HashSet::from([0]);
        self.atoms.iter_mut().for_each(|atom| (atom.open, atom.failed) = (true, false));
    }

    /// A read was answered so.
    pub fn read(&mut self, span: Span, stamps: &[u64]) {
        assert_eq!(stamps.len() as u64, span.atoms, "a read of {span:?}");
        let mut stamps = stamps.iter();
        for (at, atom) in self.span(span) {
            let stamp = *stamps.next().expect("as many as atoms");
            let last = atom.history.last().expect("something was there first").stamp;
            let is_possible = if atom.open { atom.history.iter().any(|written| written.stamp == stamp) } else { stamp == last };
            assert!(is_possible, "atom {at} reads as {stamp:x}; written were {:x?}", atom.history);
            if atom.open && atom.failed {
                atom.history.push(Written { by: NOBODY, stamp });
                (atom.open, atom.failed) = (false, false);
            } else if atom.open {
                // After a crash it stays so from now on.
                *atom = Atom { history: vec![Written { by: 0, stamp }], open: false, failed: false };
            }
        }
    }
}
