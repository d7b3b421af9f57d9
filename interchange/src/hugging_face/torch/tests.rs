use std::fs;
use std::path::{Path, PathBuf};

use super::super::safetensors_file::SafetensorsFile;
use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("tests/fixtures/torch").join(name)
}

fn error(name: &str) -> String {
    TorchFile::open(&fixture(name)).expect_err("refused").to_string()
}

#[test]
fn a_model_has_the_tensors_of_its_safetensors() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let wanted = SafetensorsFile::open(&root.join("model/fixtures/families/qwen2/model.safetensors")).expect("a model");
    let found = TorchFile::open(&fixture("qwen2.bin")).expect("the same model");
    assert_eq!(found.tensors(), wanted.tensors());
    assert!(found.tensors().len() > 20);
}

#[test]
fn types_shapes_and_shared_elements_are_read_in_both_protocols() {
    let f32s = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let all = f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    for name in ["small.bin", "small-protocol-4.bin"] {
        let file = TorchFile::open(&fixture(name)).expect("tensors");
        let found: Vec<_> =
            file.tensors().into_iter().map(|t| (t.name, t.shape, t.element_type, t.bytes.to_vec())).collect();
        let ids = [300_i64, 301].iter().flat_map(|id| id.to_le_bytes()).collect();
        let wanted = [
            ("brain", vec![1], ElementType::Bf16, vec![0xc0, 0x3f]),
            ("empty", vec![0, 4], ElementType::F32, vec![]),
            ("f32", vec![2, 3], ElementType::F32, all.clone()),
            ("half", vec![2], ElementType::F16, vec![0x00, 0x38, 0x00, 0xc0]),
            ("ids", vec![2], ElementType::Other("Long".into()), ids),
            ("one", vec![3, 1], ElementType::F32, f32s(&[0.0; 3])),
            ("parameter", vec![2], ElementType::F32, f32s(&[1.0; 2])),
            ("row", vec![3], ElementType::F32, f32s(&[3.0, 4.0, 5.0])),
            ("scalar", vec![], ElementType::F32, f32s(&[7.0])),
            ("tied", vec![2, 3], ElementType::F32, all.clone()),
        ];
        assert_eq!(found, wanted.map(|(name, shape, kind, bytes)| (name.to_owned(), shape, kind, bytes)), "{name}");
    }
}

/// As before PyTorch 1.6.
#[test]
fn a_sequence_of_pickles_has_the_tensors_of_the_archive() {
    let (wanted, found) = (TorchFile::open(&fixture("small.bin")), TorchFile::open(&fixture("small-legacy.bin")));
    assert_eq!(found.expect("tensors").tensors(), wanted.expect("tensors").tensors());
    assert!(error("code-legacy.bin").contains("calls posix.system"));
}

#[test]
fn elements_in_another_order_are_read_as_pytorch_shows_them() {
    let file = TorchFile::open(&fixture("strided.bin")).expect("tensors");
    let found: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|tensor| {
            let elements = tensor.bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four bytes")));
            (tensor.name, tensor.shape, elements.collect::<Vec<_>>())
        })
        .collect();
    let wanted = [
        ("columns", vec![2, 2], vec![1.0, 2.0, 4.0, 5.0]),
        ("every second", vec![3], vec![0.0, 2.0, 4.0]),
        ("permuted", vec![3, 1, 2], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]),
        ("transposed", vec![3, 2], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]),
    ];
    assert_eq!(found, wanted.map(|(name, shape, elements)| (name.to_owned(), shape, elements)));
}

#[test]
fn double_precision_has_its_own_type() {
    let file = TorchFile::open(&fixture("double.bin")).expect("tensors");
    assert_eq!(file.tensors()[0].element_type, ElementType::F64);
    assert_eq!(file.tensors()[0].bytes, [0.1_f64, 1e300].map(f64::to_le_bytes).concat());
}

#[test]
fn code_is_refused_and_not_run() {
    let text = error("code.bin");
    assert!(text.contains("calls posix.system, which is not one of the functions that build tensors"), "{text}");
}

#[test]
fn what_is_not_a_dictionary_of_tensors_is_named() {
    for (name, wanted) in [
        ("repeated.bin", "weight repeats elements (shape [4, 3], strides [0, 1]); save it with .contiguous()"),
        ("nested.bin", "holds \"model\", which is not a tensor"),
        ("list.bin", "does not hold a dictionary of tensors"),
    ] {
        let text = error(name);
        assert!(text.contains(wanted), "{name}: {text}");
    }
}

/// A damaged file is an error or other tensors, and never more.
#[test]
fn damaged_files_are_read_or_refused_at_every_byte() {
    for name in ["small.bin", "small-legacy.bin", "strided.bin"] {
        let whole = fs::read(fixture(name)).expect("committed");
        for len in 0..whole.len() {
            assert!(find(&whole[..len]).is_err(), "the first {len} bytes of {} of {name}", whole.len());
        }

        let mut n_refused = 0;
        for at in 0..whole.len() {
            for change in [1, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= change;
                match find(&damaged) {
                    Ok(found) => assert!(found.iter().all(|tensor| match &tensor.elements {
                        Elements::Mapped { start, len } => start + len <= damaged.len(),
                        Elements::Gathered(bytes) => bytes.len() <= damaged.len(),
                    })),
                    Err(_) => n_refused += 1,
                }
            }
        }
        assert!(n_refused > 300, "{n_refused} refused of {name}");
    }
}
