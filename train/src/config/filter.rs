//! Filters of training text: `[data.filter]`, and the filters of single sources of a mixture.

use std::sync::Arc;

use kiln_data::{FilteredRows, RowFilter};

use super::task::{Reads, traits_of};
use super::{Config, MixEntry};

impl Config {
    /// Returns the filter of all training text; `None` if every row passes, or if a source of a mixture has a filter of its own.
    ///
    /// # Errors
    /// If the filter is invalid.
    pub fn train_filter(&self) -> kiln_data::Result<Option<Arc<RowFilter>>> {
        match self.data.mix.iter().any(|source| source.filter.is_some()) {
            true => Ok(None),
            false => RowFilter::new(&self.data.filter, self.data.held_out.as_ref(), self.filtered_rows()),
        }
    }

    /// Returns the filter of a source of a mixture.
    pub(crate) fn source_filter(&self, source: &MixEntry) -> kiln_data::Result<Option<Arc<RowFilter>>> {
        RowFilter::new(source.filter.as_ref().unwrap_or(&self.data.filter), None, self.filtered_rows())
    }

    fn filtered_rows(&self) -> FilteredRows {
        match traits_of(self.task).reads {
            Reads::Pairs => FilteredRows::Pairs,
            Reads::Text => FilteredRows::Texts,
        }
    }
}

/// Returns a problem for everything that is wrong with the filters. Each begins with its key.
pub(super) fn problems(config: &Config) -> Vec<String> {
    let (data, rows) = (&config.data, config.filtered_rows());
    let mut problems = data.filter.validate("data.filter.", rows);
    for source in &data.mix {
        let place = format!("data.mix: source \"{}\": filter.", source.name);
        problems.extend(source.filter.iter().flat_map(|filter| filter.validate(&place, rows)));
    }
    problems
}

#[cfg(test)]
mod tests {
    use kiln_data::FilterConfig;

    use super::*;
    use crate::config::presets;

    type Change = fn(&mut FilterConfig);

    #[test]
    fn wrong_filters_are_named() {
        let cases: [(&str, Change); 8] = [
            ("min_length = 9 is above max_length = 5", |f| (f.min_length, f.max_length) = (9, 5)),
            ("max_length_ratio = 0.5 is the longer side", |f| f.max_length_ratio = 0.5),
            ("max_length_ratio = NaN", |f| f.max_length_ratio = f64::NAN),
            ("min_script_share = 0 is not", |f| f.min_script_share = 0.0),
            ("source_script names \"Italian\", which", |f| f.source_script = vec!["Italian".into()]),
            ("drop_regex = \"(\" is not a regular expression: unclosed group", |f| f.drop_regex = "(".into()),
            ("keep_regex = \"[\" is not", |f| f.keep_regex = "[".into()),
            ("script is for rows of one text", |f| f.script = vec!["Latin".into()]),
        ];
        for (wanted, change) in cases {
            let mut config = presets::tiny();
            change(&mut config.data.filter);
            let found = config.validate();
            assert!(found.len() == 1 && found[0].starts_with(&format!("data.filter.{wanted}")), "{wanted}: {found:#?}");

            // A source's own filter is named with the source.
            let filter = Some(std::mem::take(&mut config.data.filter));
            let train = vec!["a.tsv".into()];
            config.data.mix = vec![MixEntry { name: "news".into(), train, filter, ..MixEntry::default() }];
            let found = config.validate();
            let wanted = format!("data.mix: source \"news\": filter.{wanted}");
            assert!(found.len() == 1 && found[0].starts_with(&wanted), "{wanted}: {found:#?}");
        }
    }

    #[test]
    fn filters_that_do_not_suit_the_rows_are_refused() {
        let of_pairs: [(&str, Change); 4] = [
            ("max_length_ratio compares", |f| f.max_length_ratio = 2.0),
            ("drop_identical compares", |f| f.drop_identical = true),
            ("source_script is for pairs; name it script", |f| f.source_script = vec!["Latin".into()]),
            ("target_script is for pairs; name it script", |f| f.target_script = vec!["Latin".into()]),
        ];
        for (wanted, change) in of_pairs {
            let mut config = presets::gpt2_tiny();
            change(&mut config.data.filter);
            let found = config.validate();
            assert!(found.len() == 1 && found[0].starts_with(&format!("data.filter.{wanted}")), "{wanted}: {found:#?}");
        }
    }

    #[test]
    fn a_source_has_its_own_filter_or_the_filter_of_all() {
        let mut config = presets::tiny();
        config.data.filter.min_length = 2;
        let own = FilterConfig { drop_duplicates: true, ..FilterConfig::default() };
        let source = |name: &str, filter| MixEntry { name: name.into(), filter, ..MixEntry::default() };
        config.data.mix = vec![source("a", None), source("b", Some(own)), source("c", Some(FilterConfig::default()))];
        let mark = |source: &MixEntry| config.source_filter(source).expect("valid").map(|filter| filter.mark());
        let marks: Vec<_> = config.data.mix.iter().map(mark).collect();
        assert_eq!(marks, [Some("{\"min_length\":2}".into()), Some("{\"drop_duplicates\":true}".into()), None]);
        assert!(config.train_filter().expect("valid").is_none());
        config.data.mix.truncate(1);
        assert!(config.train_filter().expect("valid").is_some());
        assert_eq!(Config::from_toml(&config.to_toml()).expect("as written"), config);
    }
}
