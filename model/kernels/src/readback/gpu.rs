//! Copies from CubeCL devices.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread::yield_now;

use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::Slot;
use super::ops::ReadbackOps;

impl ReadbackOps for CubeBackend {
    fn read_back(values: CubeTensor, slot: Slot) -> CubeTensor {
        assert_eq!(values.dtype, DType::F32, "a tensor that is read back");
        let values = into_contiguous(values);
        let (client, handle, n) = (values.client.clone(), values.handle.clone(), values.meta.shape().num_elements());

        // CubeCL enqueues a copy when it is asked to read, and waits for it when the answer is polled. The future owns the
        // client, so the two take a poll each.
        let mut read = Box::pin(async move {
            let copied = client.read_async(vec![handle]);
            pause().await;
            let bytes = copied.await.map_err(|error| error.to_string())?;
            let bytes = bytes.into_iter().next().ok_or("the device returned no numbers")?;
            numbers(&bytes, n)
        });
        if poll(read.as_mut()).is_pending() {
            slot.fill(Box::new(move || {
                loop {
                    match poll(read.as_mut()) {
                        Poll::Ready(numbers) => return numbers,
                        Poll::Pending => yield_now(),
                    }
                }
            }));
        }
        values
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets the first poll end here.
async fn pause() {
    let mut is_first = true;
    poll_fn(|_| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

/// The first `n` f32 of `bytes`.
fn numbers(bytes: &[u8], n: usize) -> Result<Vec<f32>, String> {
    let whole =
        bytes.get(..4 * n).ok_or_else(|| format!("the device returned {} bytes for {n} numbers", bytes.len()))?;
    Ok(whole.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().expect("four bytes"))).collect())
}
