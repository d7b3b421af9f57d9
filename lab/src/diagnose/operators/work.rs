//! The floor of an operator's time: the least that a device needs for its operations and bytes.

use kiln_kernels::calls::Work;

/// Peak speeds of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Floating-point operations per second in the compute dtype.
    pub flops: f64,
    /// Bytes per second.
    pub bytes: f64,
}

impl Peaks {
    /// Returns the seconds of `work` at the peaks: `max(operations / peak, bytes / bandwidth)`.
    pub fn floor(&self, work: &Work) -> f64 {
        (work.flops / self.flops).max(work.bytes / self.bytes)
    }
}

/// Returns the rate of a call that takes `secs`: operations per second if there are any, else bytes per second.
pub fn rate(work: &Work, secs: f64) -> String {
    match work.flops > 0.0 {
        true => format!("{:.3} TFLOP/s", work.flops / secs / 1e12),
        false => format!("{:.3} TB/s", work.bytes / secs / 1e12),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_longer_of_computing_and_moving() {
        let peaks = Peaks { flops: 989e12, bytes: 4.8e12 };
        let wide = Work { flops: 2.0 * 16_384.0 * 768.0 * 50_304.0, bytes: 1.7e9 };
        assert!((peaks.floor(&wide) * 1e3 - 1.280).abs() < 1e-3, "{}", peaks.floor(&wide));
        let moved = Work { flops: 0.0, bytes: 4.8e9 };
        assert_eq!((peaks.floor(&moved), rate(&moved, 1e-2).as_str()), (1e-3, "0.480 TB/s"));
    }
}
