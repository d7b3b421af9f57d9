//! The roofs of a device: the most operations and bytes per second.

use anyhow::Result;
use burn::tensor::{Device, FloatDType};
use kiln_train::device::{peak_bytes_per_sec, peak_flops_per_sec};
use serde::{Deserialize, Serialize};

use super::super::operators::{Peaks, measured_peaks};

/// The roofs of a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Roofs {
    /// Operations of matrix products per second, in the compute dtype.
    pub flops_per_sec: f64,
    /// Bytes per second from and to the device's memory.
    pub bytes_per_sec: f64,
    /// Where the figures come from.
    pub source: RoofSource,
}

/// Where the figures of [`Roofs`] come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoofSource {
    /// The data sheet of the GPU.
    DataSheet,
    /// A large product and a large copy, timed before the profile.
    Measured,
}

impl Roofs {
    /// Returns the roofs of `device`: from its data sheet if Kiln knows it, else measured in a second.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn of(device: &Device, dtype: FloatDType) -> Result<Self> {
        let known = peak_flops_per_sec(device, dtype).zip(peak_bytes_per_sec(device));
        if let Some((flops_per_sec, bytes_per_sec)) = known {
            return Ok(Self { flops_per_sec, bytes_per_sec, source: RoofSource::DataSheet });
        }
        let Peaks { flops, bytes } = measured_peaks(dtype, device)?;
        Ok(Self { flops_per_sec: flops, bytes_per_sec: bytes, source: RoofSource::Measured })
    }

    /// Returns the operations per byte at which both roofs are equally high.
    pub fn ridge(&self) -> f64 {
        self.flops_per_sec / self.bytes_per_sec
    }

    /// Returns the highest rate, in operations per second, of work with so many operations per byte.
    pub fn at(&self, flops_per_byte: f64) -> f64 {
        self.flops_per_sec.min(flops_per_byte * self.bytes_per_sec)
    }
}
