//! An NBD client that shakes hands: whatever it sends, however it is cut, it is told the same, and not much more than it has said.

use tidegate_daemon::front::nbd::allow::Who;
use tidegate_daemon::front::nbd::export::{Export, Exports};
use tidegate_daemon::front::nbd::handshake::{Handshake, INPUT_BYTES_MAX, Step, Tls};

use crate::input::Input;

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let how = input.byte();
    let tls = if how & 1 == 0 { Tls::Off } else { Tls::Required };
    let stopping = how & 2 != 0;
    let piece = 1 + usize::from(how >> 2);
    // What TLS carries cannot be cut from what came before it: there the client waits for its answer.
    let whole = if tls == Tls::Off { usize::MAX } else { piece };
    let told = tell(tls, stopping, input.0, whole);
    assert_eq!(tell(tls, stopping, input.0, piece), told, "cut into pieces of {piece} bytes");
    let most = 1_024 + 16 * input.0.len();
    assert!(told.0.len() <= most, "{} bytes for {}", told.0.len(), input.0.len());
}

/// What the client is told, and how it ends.
fn tell(tls: Tls, stopping: bool, bytes: &[u8], piece: usize) -> (Vec<u8>, Option<Step>) {
    let export = |name: &str| Export {
        name: name.into(),
        description: "a disk".into(),
        bytes: 1 << 20,
        read_only: false,
        block_bytes: 4096,
        clients: Vec::new(),
    };
    let exports = Exports::new(vec![export("disk"), export("home")], Some(0)).expect("two exports");
    let (mut out, mut buffer) = (Vec::new(), Vec::new());
    let mut handshake = Handshake::new(tls, &mut out);
    for piece in bytes.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            let (took, step) = handshake.step(exports.offered(Who::Anybody), stopping, &buffer, &mut out);
            assert!(took <= buffer.len() && (took > 0 || matches!(step, Step::Wait | Step::Rest)), "{step:?} after nothing");
            buffer.drain(..took);
            match step {
                Step::Wait => break,
                Step::Next => {}
                Step::Rest => handshake.refill(),
                Step::StartTls => {
                    handshake = handshake.secured();
                    buffer.clear();
                }
                Step::Transmit(_) | Step::Close => return (out, Some(step)),
            }
        }
        assert!(buffer.len() <= INPUT_BYTES_MAX, "{} bytes wait for more", buffer.len());
    }
    (out, None)
}
