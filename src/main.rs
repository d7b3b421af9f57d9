//! The `kiln` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    kiln::cli::main()
}
