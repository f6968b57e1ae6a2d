//! The `nrlc` program.

fn main() -> std::process::ExitCode {
    nrlc::main()
}
