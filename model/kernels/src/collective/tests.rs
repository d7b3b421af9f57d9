use burn::tensor::Device;

use super::{Communicator, NcclError, NcclLibrary, UniqueId, assert_bounds};

#[test]
fn bounds_of_unequal_and_of_empty_slices_are_valid() {
    assert_bounds(&[0, 3, 3, 8], 3, 8);
    assert_bounds(&[256, 512], 1, 1024);
}

#[test]
#[should_panic(expected = "a bound for the beginning of each rank's slice")]
fn bounds_for_another_number_of_ranks_are_refused() {
    assert_bounds(&[0, 4, 8], 3, 8);
}

#[test]
#[should_panic(expected = "do not ascend: [0, 5, 4]")]
fn bounds_that_descend_are_refused() {
    assert_bounds(&[0, 5, 4], 2, 8);
}

#[test]
#[should_panic(expected = "beyond the 8 elements")]
fn bounds_beyond_the_tensor_are_refused() {
    assert_bounds(&[0, 4, 9], 2, 8);
}

#[test]
fn a_rank_on_the_cpu_is_sent_away() {
    let error = Communicator::join(&UniqueId([0; 128]), 0, 2, &Device::flex()).expect_err("not a CUDA device");
    let expected = match NcclLibrary::open() {
        // Without NCCL its absence comes first.
        Err(missing) => missing,
        Ok(_) => NcclError::NotCuda { device: "Flex".into() },
    };
    assert_eq!(std::mem::discriminant(&error), std::mem::discriminant(&expected), "{error}");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn builds_without_cuda_name_the_feature() {
    let errors =
        [UniqueId::new().map(|_| ()), NcclLibrary::open().map(|_| ())].map(|result| result.expect_err("no NCCL"));
    assert_eq!(errors, [NcclError::NotBuilt, NcclError::NotBuilt]);
    assert!(errors[0].to_string().contains("--features cuda"), "{}", errors[0]);
}
