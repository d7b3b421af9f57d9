//! Attention of f32 numbers that use all their bits, with both kinds of products.

use burn::tensor::{DType, Device};

use super::cases::{cases, inputs_of};
use super::{attention, expected, reference, run, run_with};
use crate::testing::{devices, distance, part, precise_values};
use crate::{F32Products, Settings};

#[test]
fn f32_is_as_accurate_as_chosen() {
    for (name, device) in devices() {
        for (at, ref case) in part(cases()) {
            let inputs = inputs_of(case, precise_values);
            let expected = expected(case, &inputs);
            let (_, gradients) = run(&Device::flex(), DType::F32, case, &inputs);
            for f32_products in [F32Products::F32, F32Products::Tf32] {
                let _chosen = Settings { f32_products, ..Settings::current() }.install();
                let (out, found) = run(&device, DType::F32, case, &inputs);
                // TF32 keeps 11 significant bits of each operand.
                let allowed = if f32_products == F32Products::F32 { 2e-6 } else { 2e-3 };
                let off = distance(&out, &expected);
                assert!(off < allowed, "case {at} on {name}, {f32_products:?}: {off:.1e}");
                for (part, (a, b)) in found.iter().zip(&gradients).enumerate() {
                    let off = distance(a, b);
                    assert!(off < 2.0 * allowed, "gradient {part} of case {at} on {name}, {f32_products:?}: {off:.1e}");
                }
            }
        }
    }
}

/// Every device drops the probabilities that the reference on the CPU drops, with f32's accuracy.
#[test]
fn dropped_probabilities_are_as_accurate() {
    for (name, device) in devices() {
        for (at, ref case) in part(cases()).filter(|(_, case)| case.documents.is_none()) {
            let inputs = inputs_of(case, precise_values);
            let plain = run_with(reference::attention, &Device::flex(), DType::F32, case, &inputs, Some(0.3));
            let found = run_with(attention, &device, DType::F32, case, &inputs, Some(0.3));
            let off = distance(&found.0, &plain.0);
            assert!(off < 2e-6, "case {at} on {name}: {off:.1e}");
            for (part, (a, b)) in found.1.iter().zip(&plain.1).enumerate() {
                let off = distance(a, b);
                assert!(off < 4e-6, "gradient {part} of case {at} on {name}: {off:.1e}");
            }
        }
    }
}
