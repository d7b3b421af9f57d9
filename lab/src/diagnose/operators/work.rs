//! The least work of an operator, computed from its shape: operations, bytes, and the floor of its time on a device.

/// Floating-point operations and bytes of one call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Floating-point operations of products. Other operators are counted by their bytes alone.
    pub(crate) flops: f64,
    /// Bytes if every operand is read once and every result written once.
    pub(crate) bytes: f64,
}

/// Peak speeds of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Floating-point operations per second in the compute dtype.
    pub flops: f64,
    /// Bytes per second.
    pub bytes: f64,
}

impl Work {
    /// `[M, K] · [K, N]`: `2 M K N` operations, in elements of `element` bytes. The three products of a linear layer differ
    /// only in which of the matrices is the result.
    pub(super) fn product([m, k, n]: [usize; 3], element: usize) -> Self {
        let [m, k, n] = [m, k, n].map(|size| size as f64);
        Self { flops: 2.0 * m * k * n, bytes: (m * k + k * n + m * n) * element as f64 }
    }

    /// Work without products.
    pub(super) fn moved(bytes: usize) -> Self {
        Self { flops: 0.0, bytes: bytes as f64 }
    }

    /// Returns the seconds at the peaks: `max(operations / peak, bytes / bandwidth)`.
    pub fn floor(&self, peaks: &Peaks) -> f64 {
        (self.flops / peaks.flops).max(self.bytes / peaks.bytes)
    }

    /// Returns the rate of a call that takes `secs`: operations per second if there are any, else bytes per second.
    pub fn rate(&self, secs: f64) -> String {
        match self.flops > 0.0 {
            true => format!("{:.3} TFLOP/s", self.flops / secs / 1e12),
            false => format!("{:.3} TB/s", self.bytes / secs / 1e12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_longer_of_computing_and_moving() {
        let peaks = Peaks { flops: 989e12, bytes: 4.8e12 };
        let wide = Work::product([16_384, 768, 50_304], 2);
        assert!((wide.floor(&peaks) * 1e3 - 1.280).abs() < 1e-3, "{}", wide.floor(&peaks));
        let narrow = Work::product([16_384, 8, 16_384], 2);
        assert_eq!(narrow.floor(&peaks), narrow.bytes / 4.8e12);
        assert_eq!(Work::moved(4_800_000_000).floor(&peaks), 1e-3);
        assert_eq!(Work::moved(1_000_000_000).rate(1e-3), "1.000 TB/s");
    }
}
