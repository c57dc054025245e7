//! The `hca` command.

fn main() -> std::process::ExitCode {
    hca_cli::main()
}
