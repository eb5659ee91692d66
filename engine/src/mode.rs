//! Mode: what a FLUSH promises, and what is kept of writes. It is a knob, a field of the superblock, and may change at run time.

/// What a successful FLUSH (or FUA) means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Durable on the SSD, which may hold the only copy until it has gone home.
    #[default]
    WriteBack,
    /// Durable on the origin. What was written stays in the cache, clean: the SSD never holds the only copy of what was flushed.
    WriteThrough,
    /// The same; and writes go past the cache, which keeps only what was read.
    ReadOnly,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::WriteBack, Mode::WriteThrough, Mode::ReadOnly];

    /// As people and programs write it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::WriteBack => "write-back",
            Mode::WriteThrough => "write-through",
            Mode::ReadOnly => "read-only",
        }
    }

    /// A FLUSH waits for the origin: nothing that was flushed is lost with the SSD.
    pub fn is_home(self) -> bool {
        match self {
            Mode::WriteBack => false,
            Mode::WriteThrough | Mode::ReadOnly => true,
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("{text:?} is no mode: write-back, write-through or read-only"))
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
