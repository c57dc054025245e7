//! The instructions of `ibv_post_send` and `ibv_poll_cq` beyond those of the device's ports: what the border to C adds.

use std::path::Path;
use std::process::Command;

use hca_benches::cost::{Counted, count as count_of};
use hca_perf::Failure;

/// The name of the case.
pub(crate) const CASE: &str = "ibv_write_8";
/// In the names of the library's functions, and of no function of the adapter below it.
const OF: &str = "11hca_ibverbs";
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/instructions/ibv.c");
const ROUNDS: u64 = 256;

/// Compiles a C program against the header of rdma-core, and counts the library's instructions for one post and one poll
/// that finds its completion.
pub(crate) fn count(dir: &Path) -> Result<u64, Failure> {
    let library = std::env::current_exe()?.with_file_name("libhca_ibverbs.so");
    let program = dir.join(format!("hca-instructions-ibv-{}", std::process::id()));
    let compiled = Command::new("cc")
        .args(["-O2", SOURCE, "-o"])
        .args([&program, &library])
        .arg(format!("-Wl,-rpath,{}", library.parent().unwrap_or(&library).display()))
        .output()
        .map_err(|e| format!("cc can't be started: {e}"))?;
    if !compiled.status.success() {
        let text = String::from_utf8_lossy(&compiled.stderr);
        return Err(
            format!("{SOURCE} is not compiled (it needs libibverbs-dev and hca-ibverbs): {text}").into()
        );
    }
    let rounds = ROUNDS.to_string();
    let command = [program.to_str().ok_or("the folder of temporary files is not text")?, &rounds];
    let counted = count_of(CASE, &Counted { command: &command, rounds: ROUNDS, of: Some(OF) }, dir);
    std::fs::remove_file(&program)?;
    counted
}
