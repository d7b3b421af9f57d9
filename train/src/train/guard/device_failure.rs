//! Failures of the device, in words that name the batch and the remedy.

use anyhow::{Error, anyhow};
use kiln_data::Shape;

/// Adds the batch that the device failed on and, if memory ran out, the remedy.
pub(in crate::train) fn in_step(error: Error, shape: Option<Shape>) -> Error {
    let batch = shape.map_or(String::new(), |shape| format!(" on a batch of {}", explained(shape)));
    let text = format!("{error:#}");
    match allocation(&text) {
        Some(allocation) => anyhow!(
            "out of device memory in a training step{batch}; lower loader.batch_tokens and raise \
             train.grad_accum_steps by the same factor, raise train.split_batches, or set \
             train.activation_checkpointing to selective or layer ({allocation})"
        ),
        None => error.context(format!("the device failed in a training step{batch}")),
    }
}

/// Returns the line of a backend's report that names the failed allocation: the report of one failure lists everything
/// that depended on it, over pages.
pub(in crate::train) fn allocation(text: &str) -> Option<String> {
    /// Messages for more than the device has, more than is free, and more block sizes than are kept.
    const MESSAGES: [&str; 3] =
        ["can't allocate buffer", "out of device memory allocating", "every page size the memory tracks"];
    text.lines().find(|line| MESSAGES.iter().any(|message| line.contains(message))).map(|line| line.trim().to_string())
}

/// Formats a batch's shape with a legend.
pub(in crate::train) fn explained(shape: Shape) -> String {
    let legend = if shape.source_len == 0 { "rows x tokens" } else { "rows x (source + target) tokens" };
    format!("{shape} ({legend})")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that Burn gave on an H200, shortened.
    const OUT_OF_MEMORY: &str = "An error happened during execution\nCaused by:\n  Several failures at once\n  skipped \
                                 `ReduceKernel`: it needed memory\nCaused by:\n  can't allocate buffer of size: 127991808000\nAsked at:";

    #[test]
    fn running_out_of_memory_names_the_batch_and_the_remedy() {
        let shape = Shape { batch_size: 10_416, source_len: 384, target_len: 384 };
        let error = format!("{:#}", in_step(anyhow!(OUT_OF_MEMORY), Some(shape)));
        assert!(error.contains("10416 x (384 + 384)") && error.contains("lower loader.batch_tokens"), "{error}");
        assert!(error.contains("127991808000") && !error.contains("ReduceKernel"), "{error}");
        let error = format!("{:#}", in_step(anyhow!(OUT_OF_MEMORY), Some(Shape::text(64, 1024))));
        assert!(error.contains("64 x 1024 (rows x tokens)"), "{error}");
    }

    /// As Burn said it on an H200 that had the memory, but not free.
    #[test]
    fn memory_that_is_not_free_is_recognized() {
        let text = "An error happened during execution\nCaused by:\n  skipped `Gemm`: it needed memory ManagedMemoryId { value: 1936 }, \
                    which carried the failure\nCaused by:\n  An IO error happened\nCaused by:\n  out of device memory allocating \
                    9211740160 bytes\nNo backtrace available";
        assert_eq!(allocation(text).as_deref(), Some("out of device memory allocating 9211740160 bytes"));
    }

    #[test]
    fn another_failure_keeps_its_reason() {
        let error = format!("{:#}", in_step(anyhow!("an illegal address"), None));
        assert!(error.contains("an illegal address") && !error.contains("memory"), "{error}");
    }
}
