//! What stands in for a communicator in builds without CUDA. None can be made.

use std::sync::Arc;

use burn::tensor::Device;

use super::{CollectiveTime, NcclError, NcclLibrary, UniqueId};

/// A connection that does not exist.
pub(super) enum Link {}

impl Link {
    pub(super) fn unique_id(_library: &NcclLibrary) -> Result<[u8; 128], NcclError> {
        Err(NcclError::NotBuilt)
    }

    pub(super) fn join(
        _library: &NcclLibrary,
        _id: &UniqueId,
        _rank: usize,
        _world_size: usize,
        _device: &Device,
    ) -> Result<Self, NcclError> {
        Err(NcclError::NotBuilt)
    }

    pub(super) fn rank(&self) -> usize {
        match *self {}
    }

    pub(super) fn world_size(&self) -> usize {
        match *self {}
    }

    pub(super) fn device(&self) -> &Device {
        match *self {}
    }

    pub(super) fn check(&self) -> Result<(), NcclError> {
        match *self {}
    }

    pub(super) fn abort(&self) {
        match *self {}
    }

    pub(super) fn take_timings(link: &Arc<Self>) -> Vec<CollectiveTime> {
        match **link {}
    }
}
