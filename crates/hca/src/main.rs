//! The `hca` command.

fn main() -> std::process::ExitCode {
    hca::cli::run()
}
