//! The one place where the training thread waits for the device.
//!
//! Everything that reads a tensor while a run trains, validates or saves goes through [`read`] or [`waiting`], which count.
//! `tests/it/tidy` finds reads elsewhere.

use std::cell::Cell;

use burn::tensor::{ExecutionError, Tensor, TensorData, Transaction};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Returns how often this thread has waited for the device so far.
pub fn count() -> u64 {
    COUNT.get()
}

/// Runs `read`, which waits for the device once.
pub fn waiting<T>(read: impl FnOnce() -> T) -> T {
    COUNT.set(COUNT.get() + 1);
    read()
}

/// Reads tensors in one transaction. Does not wait if there are none.
///
/// # Errors
/// If the device has failed.
pub fn read<const D: usize>(tensors: impl IntoIterator<Item = Tensor<D>>) -> Result<Vec<TensorData>, ExecutionError> {
    let mut tensors = tensors.into_iter().peekable();
    if tensors.peek().is_none() {
        return Ok(Vec::new());
    }
    let transaction = tensors.fold(Transaction::default(), Transaction::register);
    waiting(|| transaction.try_execute())
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn a_transaction_counts_once_and_an_empty_one_not_at_all() {
        let tensor = |value: f32| Tensor::<1>::from_data([value], &Device::flex());
        let before = count();
        let values = read([tensor(1.0), tensor(2.0)]).expect("the CPU answers");
        assert_eq!((values.len(), count() - before), (2, 1));
        assert!(read::<1>([]).expect("nothing to read").is_empty());
        assert_eq!((waiting(|| 7), count() - before), (7, 2));
        assert_eq!(std::thread::spawn(count).join().expect("a count"), 0, "each thread counts its own");
    }
}
