//! The limit of the token cache on disk, and the key that it replaced.

use serde::de::{Deserialize, Deserializer, Error};

/// A key that was removed. Configurations of earlier versions have it as `false`, which changes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemovedSwitch;

impl<'de> Deserialize<'de> for RemovedSwitch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match bool::deserialize(deserializer)? {
            false => Ok(Self),
            true => Err(D::Error::custom(
                "data.direct was removed; text is read from the token cache, which is made once (data.cache_dir names its folder), and text \
                 whose cache is too large for the disk is trained on with data.cache_limit",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use kiln_data::{Packing, Task, TextFormat};

    use crate::config::{ByteSize, Config, MixEntry, presets};

    fn limited() -> Config {
        let mut config = presets::gpt2_tiny();
        config.data.train = vec!["text".into()];
        config.data.cache_limit = Some(ByteSize::of("1GB").expect("a size"));
        config
    }

    #[test]
    fn a_limit_is_kept_as_it_was_written() {
        let config = limited();
        assert_eq!(config.validate(), Vec::<String>::new());
        assert!(config.to_toml().contains("cache_limit = \"1GB\""));
        assert_eq!(Config::from_toml(&config.to_toml()).expect("as written"), config);
        let read = Config::from_toml("[data]\ncache_limit = 1000000").expect("a number of bytes");
        assert_eq!(read.data.cache_limit.expect("set").bytes(), 1_000_000);
        let error = Config::from_toml("[data]\ncache_limit = \"much\"").expect_err("not a size");
        assert!(error.message().contains("not a size"), "{error}");
        assert!(Config::from_toml("[data]\ncache_limit = true").expect_err("a switch").message().contains("50GB"));
    }

    #[test]
    fn a_limit_is_for_rows_of_every_task_packing_and_order() {
        let pairs = Config { data: limited().data, ..presets::tiny() };
        assert_eq!((pairs.task, pairs.validate()), (Task::Translation, Vec::new()));

        type Change = fn(&mut Config);
        let served: [Change; 9] = [
            |c| c.data.text.packing = Packing::Sentences,
            |c| c.loader.shuffle = false,
            |c| (c.data.text.packing, c.loader.shuffle) = (Packing::Sentences, false),
            |c| c.data.text.format = TextFormat::Chat,
            |c| (c.data.text.format, c.data.text.packing) = (TextFormat::Chat, Packing::Sentences),
            |c| c.data.text.format = TextFormat::Preferences,
            |c| c.data.filter.drop_duplicates = true,
            |c| c.data.split = 0.1,
            |c| {
                let source =
                    |name: &str| MixEntry { name: name.into(), train: vec![name.into()], ..MixEntry::default() };
                (c.data.train, c.data.mix) = (Vec::new(), vec![source("a"), source("b")]);
            },
        ];
        for (number, change) in served.into_iter().enumerate() {
            let mut config = limited();
            change(&mut config);
            let refused = config.validate().into_iter().find(|problem| problem.contains("data.cache_limit"));
            assert_eq!(refused, None, "change {number}");
        }
        let mut classes = limited();
        classes.task = Task::Classification;
        assert!(!classes.validate().iter().any(|problem| problem.contains("data.cache_limit")));
        assert_eq!(limited().task, Task::Lm);
    }

    #[test]
    fn the_removed_key_names_its_replacement_and_old_configurations_are_read() {
        assert_eq!(Config::from_toml("[data]\ndirect = false").expect("as earlier versions wrote"), Config::default());
        assert!(!Config::default().to_toml().contains("direct"));
        let error = Config::from_toml("[data]\ndirect = true").expect_err("removed");
        assert!(error.message().contains("was removed") && error.message().contains("data.cache_limit"), "{error}");
    }
}
