//! `tidegate`: the command line (`lib.rs`).

fn main() -> std::process::ExitCode {
    tidegate::main()
}
