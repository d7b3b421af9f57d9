//! Follows the commands that messages print.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Runs the first command of a message that writes `rows.jsonl`, in a folder, and returns the rows; `None` without jq.
pub(super) fn rows_made(said: &str, folder: &Path) -> Option<Vec<Value>> {
    Command::new("jq").arg("--version").output().ok()?;
    let (before, _) = said.split_once(" > rows.jsonl").unwrap_or_else(|| panic!("no command: {said}"));
    let start = [": jq ", ": python3 ", "\njq ", "\npython3 "].iter().filter_map(|start| before.rfind(start)).max();
    let command = before[start.unwrap_or_else(|| panic!("no command: {said}"))..].trim_start_matches([':', ' ', '\n']);
    let made = Command::new("sh").args(["-c", command]).current_dir(folder).output().expect("a shell");
    assert!(made.status.success(), "{command}: {}", String::from_utf8_lossy(&made.stderr));
    let text = String::from_utf8(made.stdout).expect("UTF-8");
    Some(text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect())
}
