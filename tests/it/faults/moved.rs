//! Run folders that are moved or deleted while they train.

use super::*;

#[test]
fn a_run_folder_that_is_moved_or_deleted_ends_the_run_in_words() {
    let place = workplace();
    let remove = |place: &Workplace| fs::remove_dir_all(place.path("runs/a")).expect("ours");
    type Change = (&'static str, fn(&Workplace));
    let changes: [Change; 4] = [
        ("moved", |place| fs::rename(place.path("runs/a"), place.path("elsewhere")).expect("there")),
        ("parent", |place| fs::rename(place.path("runs"), place.path("elsewhere")).expect("there")),
        ("deleted", |place| {
            // The run may write between the listing and the deletion.
            while place.path("runs/a").exists() {
                let _ = fs::remove_dir_all(place.path("runs/a"));
            }
        }),
        ("replaced", |place| {
            fs::rename(place.path("runs/a"), place.path("elsewhere")).expect("there");
            fs::create_dir_all(place.path("runs/a/checkpoints")).expect("writable");
        }),
    ];

    for (what, change) in changes {
        let all = [arguments("runs/a", 1_000_000), ["--set", "train.save_every=50"].map(String::from).into()].concat();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let child = place.command(&all).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        wait_until("a checkpoint", || place.path("runs/a/checkpoints/last").exists());
        change(&place);
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{what}: {stderr}");
        let said = stderr.lines().filter(|line| line.starts_with("error: ")).collect::<Vec<_>>().join(" ");
        assert!(
            said.contains("runs/a") && stderr.contains("was moved or deleted") && !stderr.contains("panicked"),
            "{stderr}"
        );

        match what {
            "moved" => {
                assert!(!place.path("runs/a").exists(), "nothing is made in the old place");
                assert!(place.path("elsewhere/checkpoints/last").exists(), "what was saved is there");
            }
            "replaced" => {
                let found = files_below(&place.path("runs/a"));
                assert!(found.is_empty(), "nothing is written into another folder: {found:?}")
            }
            _ => {}
        }

        let _ = fs::remove_dir_all(place.path("elsewhere"));
        if place.path("runs/a").exists() {
            remove(&place);
        }
    }
}
