//! One switch that makes every operator take its plain definition.

use std::sync::atomic::{AtomicBool, Ordering};

static PLAIN: AtomicBool = AtomicBool::new(false);

/// Makes every operator compute by its definition in plain Burn operations (`reference.rs` of its folder) instead of its
/// kernel, in the whole process, from the next call on: what a training run or a time is compared with. Gradients then are
/// those of the backend's own autodiff, products are the backend's, arithmetic between them is f32.
///
/// The random bits of dropout and masking are the same either way, and so is the copy that makes gradients flat: what is
/// compared drops the same elements. It is slow and keeps scores of size T x S.
///
/// Set before the first device is opened, it also keeps Burn from fusing operations, in the whole process: a step of plain
/// operations is so long that the search for what to fuse in it never ends (20 s a step).
pub fn set_plain_operators(plain: bool) {
    #[cfg(feature = "cuda")]
    if plain {
        do_not_fuse();
    }
    PLAIN.store(plain, Ordering::Relaxed);
}

/// Unless a `burn.toml` or the environment says how long to search, or a device is open. The fields of Burn's configuration
/// are private, its TOML is not.
#[cfg(feature = "cuda")]
fn do_not_fuse() {
    use burn::BurnConfig;
    use cubecl::config::RuntimeConfig;
    let config = BurnConfig::from_current_dir().override_from_env();
    if config.fusion().beam_search.max_explorations.is_none() {
        let mut table = toml::Table::try_from(config).expect("Burn's configuration is written as TOML");
        table["fusion"]["beam_search"].as_table_mut().expect("a section").insert("max_explorations".into(), 0.into());
        BurnConfig::try_set(table.try_into().expect("what was read, and a number"));
    }
}

/// Whether operators compute by their plain definitions, see [`set_plain_operators`].
pub fn plain_operators() -> bool {
    PLAIN.load(Ordering::Relaxed)
}
