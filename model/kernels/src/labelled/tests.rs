use burn::tensor::{DType, Int, Tensor, TensorData};

use super::labelled_rows;
use crate::testing::devices;

/// None, some, all; more than a block has threads; fewer rows than labels that count.
#[test]
fn rows_with_labels_come_first_each_once() {
    for (name, device) in devices() {
        for (rows, every) in [(1, 1), (1, 2), (7, 3), (64, 7), (1024, 1), (1025, 5), (5000, 6000), (32_768, 7)] {
            let labels: Vec<i32> =
                (0..rows).map(|row| if (row * row + 1) % every == 0 { row % 5 } else { -1 }).collect();
            let (counted, others): (Vec<i32>, Vec<i32>) = (0..rows).partition(|&row| labels[row as usize] != -1);
            let wanted: Vec<i32> = counted.iter().copied().chain(others).collect();
            for len in [1, counted.len().max(1) - 1, counted.len(), rows as usize] {
                let len = len.max(1);
                let labels = TensorData::new(labels.clone(), [rows as usize]);
                let labels = Tensor::<1, Int>::from_data(labels, (&device, DType::I32));
                let found: Vec<i32> = labelled_rows(labels, -1, len).into_data().try_into_vec().expect("integers");
                assert_eq!(found, wanted[..len], "{len} of {rows} rows, {} counted, on {name}", counted.len());
            }
        }
    }
}
