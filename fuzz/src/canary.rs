//! The canary: a door of eight locks. Bytes drawn by chance open it once in 2^64 tries; coverage tells of each lock that it is open.

pub fn run(data: &[u8]) {
    const KEY: &[u8; 8] = b"ebb tide";
    let mut open = 0;
    for (lock, key) in KEY.iter().enumerate() {
        if data.get(lock) != Some(key) {
            break;
        }
        open = std::hint::black_box(lock + 1);
        // A branch of its own for each lock: what a search can see.
        match open {
            1 => std::hint::black_box(1),
            2 => std::hint::black_box(2),
            3 => std::hint::black_box(3),
            4 => std::hint::black_box(4),
            5 => std::hint::black_box(5),
            6 => std::hint::black_box(6),
            _ => std::hint::black_box(7),
        };
    }
    assert!(open < KEY.len(), "the canary sings");
}
