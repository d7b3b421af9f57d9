//! Disks that are full or cannot be written.

use super::*;

/// The command under a limit of file size: writes up to it are short, those beyond it fail, as on a full disk.
#[cfg(unix)]
pub(super) fn with_file_limit(place: &Workplace, arguments: &[&str], kib: usize) -> Ran {
    use std::process::Command;
    // SIGXFSZ would kill it; ignored, the write fails.
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", 2 * kib);
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_kiln")]).args(arguments);
    let output = command.current_dir(place.path("")).output().expect("sh is there");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code().expect("not killed"), stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[cfg(unix)]
#[test]
fn a_full_disk_ends_the_run_and_costs_nothing_but_time() {
    let place = workplace();
    begin(&place, "runs/a", 12).ok();
    let all = arguments("runs/b", 12);
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    // Full from the beginning: not even the cache.
    let ran = with_file_limit(&place, &all, 1);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.stderr.contains("failed") || ran.stderr.contains("cannot"), "{ran:#?}");
    // Full when the first checkpoint is written, in the middle of a file.
    let model = fs::metadata(place.path("runs/a/checkpoints/step-00000012/model.safetensors")).expect("there").len();
    let ran = with_file_limit(&place, &all, model as usize / 2048);
    assert_eq!(ran.code, 1, "{ran:#?}");
    for part in ["no further without its checkpoint", "free space", "--resume", "model.safetensors"] {
        assert!(ran.stderr.contains(part), "{part:?} is missing in {ran:#?}");
    }
    let left: Vec<_> = files_below(&place.path("runs/b/checkpoints"));
    assert!(left.is_empty(), "half a checkpoint does not keep the disk full: {left:?}");
    // Full later: what is there stays sound.
    resume(&place, "runs/b").ok();
    assert_same_end(&place, "runs/a", "runs/b", 12);
    fs::remove_dir_all(place.path("runs/b/checkpoints/step-00000012")).expect("there");
    let again = ["train", "--device", "cpu", "--run", "runs/b", "--resume"];
    let ran = with_file_limit(&place, &again, model as usize / 2048);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.stderr.contains("resuming from runs/b/checkpoints/step-00000009"), "{ran:#?}");
    resume(&place, "runs/b").ok();
    assert_same_end(&place, "runs/a", "runs/b", 12);
}

#[test]
fn a_folder_that_cannot_be_written_is_named_before_any_work() {
    let place = workplace();
    place.write("file", "in the way");
    let mut places = vec!["file/run".to_string()];
    if cfg!(target_os = "linux") {
        places.push("/proc/kiln/run".into());
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::create_dir(place.path("locked")).expect("writable");
        fs::set_permissions(place.path("locked"), fs::Permissions::from_mode(0o555)).expect("ours");
        // Permissions do not stop root.
        match fs::write(place.path("locked/try"), "") {
            Ok(()) => println!("skipped: a read-only folder, since this user may write everywhere"),
            Err(_) => places.push("locked/run".into()),
        }
    }
    for run in places {
        let ran = begin(&place, &run, 12);
        assert!(matches!(ran.code, 1 | 2), "{ran:#?}");
        assert!(ran.stderr.contains(&run) && ran.stderr.contains("--run"), "{ran:#?}");
        assert!(!ran.stderr.contains("panicked"), "{ran:#?}");
    }
}
