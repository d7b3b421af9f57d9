//! Files that are damaged, and a transfer between caches.

use super::*;

fn parsed(bytes: &[u8]) -> Result<Parsed, String> {
    parse(Path::new("a.kernels"), bytes).map_err(|error| error.to_string())
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let file = assemble("12ab", "NVIDIA\nH100 ", b"a bundle\n\nof bytes");
    let Parsed { build, made_on, at } = parsed(&file).expect("sound");
    assert_eq!((build.as_str(), made_on.as_str(), &file[at..]), ("12ab", "NVIDIA H100", &b"a bundle\n\nof bytes"[..]));
}

#[test]
fn every_flipped_bit_and_every_missing_byte_is_found() {
    let file = assemble("12ab", "NVIDIA H100", b"a bundle");
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut flipped = file.clone();
            flipped[at] ^= 1 << bit;
            let error = parsed(&flipped).expect_err("a flipped bit");
            assert!(error.contains("a.kernels is not") || error.contains("a.kernels is damaged"), "{error}");
        }
        parsed(&file[..at]).expect_err("a missing byte");
    }
    assert!(parsed(b"").is_err() && parsed(&[0; 300]).is_err());
}

#[cfg(feature = "cuda")]
mod transfer {
    use std::path::Path;
    use std::process::Command;
    use std::{env, fs};

    use cubecl_environment::environment::{self, Store, StoreOptions};

    use super::super::{Imported, export_kernels, import_kernels};
    use crate::compilation::keep_kernels;

    /// A store in the cache, as CubeCL's own.
    fn store() -> Store<String, String> {
        environment::store(StoreOptions::new().storage("test".to_owned()))
    }

    /// What the next test does in other processes: a process has one cache.
    #[test]
    #[ignore = "the next test runs it, in processes of their own"]
    fn steps_of_a_transfer() {
        let (Ok(step), Ok(folder)) = (env::var("KILN_TEST_STEP"), env::var("KILN_TEST_FOLDER")) else { return };
        let (folder, file) = (Path::new(&folder), Path::new(&folder).join("a.kernels"));
        let refused = |step: &str| import_kernels(&file).expect_err(step).to_string();

        match step.as_str() {
            "export" => {
                assert!(refused(&step).contains("is not kept"));
                keep_kernels(&folder.join("here"));
                store().insert("one".into(), "kernel".into()).expect("a writable folder");
                fs::write(&file, "notes of a user").expect("writable");
                let foreign = export_kernels(&file, "a GPU").expect_err("another file").to_string();
                assert!(foreign.contains("is not a file of kernels"), "{foreign}");
                fs::remove_file(&file).expect("there");
                // The second time it is replaced.
                for _ in 0..2 {
                    assert_eq!(export_kernels(&file, "a GPU").expect("writable").entries, 1);
                }
            }
            "import" => {
                keep_kernels(&folder.join("there"));
                let wanted = Imported { entries: 1, made_on: "a GPU".into() };
                assert_eq!(import_kernels(&file).expect("sound"), Some(wanted));
                assert_eq!(store().get(&"one".to_owned()).map(String::as_str), Some("kernel"));
                assert_eq!(import_kernels(&file).expect("sound"), None, "it is there");
            }
            "import again" => {
                keep_kernels(&folder.join("there"));
                assert_eq!(import_kernels(&file).expect("sound"), None, "an earlier process did it");
            }
            "damage" => {
                keep_kernels(&folder.join("elsewhere"));
                let mut bytes = fs::read(&file).expect("there");
                let (at, build) =
                    (bytes.len() - 3, bytes.windows(6).position(|word| word == b"build ").expect("a build"));
                bytes[at] ^= 1;
                fs::write(&file, &bytes).expect("writable");
                assert!(refused(&step).contains("its hash differs"), "{}", refused(&step));

                bytes[at] ^= 1;
                bytes[build + 6] ^= 1;
                let rest = bytes[build..].to_vec();
                let start = format!("{}\nblake3 {}\n", super::super::MAGIC, blake3::hash(&rest).to_hex());
                fs::write(&file, [start.as_bytes(), &rest].concat()).expect("writable");
                assert!(refused(&step).contains("another build"), "{}", refused(&step));
                assert_eq!(store().get(&"one".to_owned()), None, "nothing was imported");
            }
            step => panic!("no step {step}"),
        }
    }

    #[test]
    fn kernels_reach_another_cache_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        for step in ["export", "import", "import again", "damage"] {
            let ran = Command::new(env::current_exe().expect("this test"))
                .args(["--exact", "compilation::file::tests::transfer::steps_of_a_transfer", "--ignored"])
                .env("KILN_TEST_STEP", step)
                .env("KILN_TEST_FOLDER", folder.path())
                .output()
                .expect("it starts");
            let said = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && said.contains("1 passed"), "{step}: {said}");
        }
    }
}
