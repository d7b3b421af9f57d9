//! What early kernels load as constants: weights, and nothing that a kernel in front of them may write, see [`super::early`].

use std::collections::{BTreeMap, BTreeSet};

/// The buffers, by the number of the parameter, that kernels in front of an early one write, by the beginning of its label.
const WRITTEN: [(&str, &[usize]); 7] = [
    ("capture/overwrite", &[0]),
    ("capture/rows", &[0, 1]),
    ("embedding/forward", &[1]),
    ("likeliest/", &[0]),
    ("linear/few-rows", &[0, 3]),
    ("norm/forward", &[0, 1]),
    ("step_attention/", &[0, 1, 2, 3]),
];
/// The same for gated activations.
const GATED: [&str; 2] = ["swiglu/forward", "geglu/forward"];

/// Returns the parameters of a kernel whose memory it loads as constants.
fn constants_of(ptx: &str) -> BTreeSet<usize> {
    let mut from: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    let registers = |line| -> Vec<&str> {
        let is_end = |c: char| !c.is_ascii_alphanumeric();
        let parts = str::split(line, '%').skip(1);
        parts.map(|part| part.split(is_end).next().unwrap_or_default()).collect()
    };
    // Twice, because a loop changes addresses behind their use.
    let mut found = BTreeSet::new();
    for line in ptx.lines().chain(ptx.lines()).map(str::trim) {
        let named = registers(line);

        if line.starts_with("ld.param") {
            let number = line.split("_param_").nth(1).and_then(|rest| rest.split(']').next()?.parse().ok());
            if let (Some(&register), Some(number)) = (named.first(), number) {
                from.entry(register).or_default().insert(number);
            }
        } else if line.starts_with("ld.global.nc") {
            found.extend(named.last().and_then(|address| from.get(address)).into_iter().flatten());
        } else if let Some((&target, sources)) = named.split_first()
            && ["cvta", "add", "sub", "mad", "mov", "selp", "or"].iter().any(|name| line.starts_with(name))
        {
            let all: BTreeSet<usize> = sources.iter().filter_map(|name| from.get(name)).flatten().copied().collect();
            from.entry(target).or_default().extend(all);
        }
    }
    found
}

/// The assembler moves loads of constants in front of the wait for the kernel in front.
#[test]
fn early_kernels_load_nothing_as_constant_that_others_write() {
    let mut checked = 0;
    for kernel in super::lock::kernels() {
        let Some(ptx) = kernel.ptx.as_ref().filter(|ptx| ptx.contains("griddepcontrol.wait")) else { continue };
        let label = kernel.label.as_str();
        let row = WRITTEN.iter().find(|(prefix, _)| label.starts_with(prefix)).map(|(_, written)| *written);
        let gated = GATED.iter().any(|prefix| label.starts_with(prefix)).then_some([0].as_slice());
        let written = row.or(gated).unwrap_or_else(|| panic!("{label} has no row in this test"));
        let constants = constants_of(ptx);
        let wrong: Vec<_> = written.iter().filter(|number| constants.contains(number)).collect();
        assert!(wrong.is_empty(), "{label} loads parameters {wrong:?} as constants");
        checked += 1;
    }
    // `KILN_PTX_ONLY` leaves some out.
    assert!(checked >= 10 || std::env::var_os("KILN_PTX_ONLY").is_some(), "only {checked} early kernels");
}

/// Products read weights as constants, which the test above would not find if it found nothing.
#[test]
fn weights_are_constants() {
    let products = super::lock::kernels().into_iter().filter(|kernel| kernel.label.starts_with("linear/few-rows"));
    for ptx in products.filter_map(|kernel| kernel.ptx.as_ref()) {
        assert!(constants_of(ptx).contains(&1), "{:?}", constants_of(ptx));
    }
}
