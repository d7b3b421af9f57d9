//! Ends a text at a stop string. The text comes in pieces, so the string may begin in one piece and end in another.

/// Watches one text for stop strings.
#[derive(Debug, Clone)]
pub struct StopWatch<'a> {
    stops: &'a [String],
    /// The last part of the text, which may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl<'a> StopWatch<'a> {
    /// Starts to watch a text. Empty strings never end it.
    pub fn new(stops: &'a [String]) -> Self {
        Self { stops, held: String::new(), stopped: false }
    }

    /// Takes the next piece and returns the text that cannot belong to a stop string. It never returns a part of a stop
    /// string or the text after one.
    pub fn push(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(piece);
        let stops = || self.stops.iter().filter(|stop| !stop.is_empty());
        if let Some(at) = stops().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }

        let may_begin = |from: usize| stops().any(|stop| stop.starts_with(&self.held[from..]));
        let certain = self.held.char_indices().map(|(at, _)| at).find(|at| may_begin(*at)).unwrap_or(self.held.len());
        let open = self.held.split_off(certain);
        std::mem::replace(&mut self.held, open)
    }

    /// Returns whether a stop string has occurred.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Ends the text and returns the part that was held back.
    pub fn finish(self) -> String {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out piece by piece, and at the end.
    fn pieces(stops: &[&str], text: &[&str]) -> (Vec<String>, bool, String) {
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let mut watch = StopWatch::new(&stops);
        let out = text.iter().map(|piece| watch.push(piece)).collect();
        (out, watch.stopped(), watch.finish())
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_never_shown() {
        let (out, stopped, rest) = pieces(&["\n\n"], &["one", "\n", "two\n", "\nthree", "four"]);
        assert_eq!(out, ["one", "", "\ntwo", "", ""]);
        assert!(stopped && rest.is_empty());
    }

    #[test]
    fn what_only_looked_like_a_stop_string_is_shown_at_last() {
        let (out, stopped, rest) = pieces(&["</s>"], &["a<", "/b", "</", "s"]);
        assert_eq!(out, ["a", "</b", "", ""]);
        assert!(!stopped);
        assert_eq!(rest, "</s");
    }

    #[test]
    fn the_first_of_several_strings_counts() {
        let (out, stopped, _) = pieces(&["END", "\n"], &["text\nmore END"]);
        assert_eq!((out, stopped), (vec!["text".to_string()], true));
        assert_eq!(pieces(&["aab"], &["aaaab"]).0, ["aa"], "a string may begin inside its own beginning");
        assert_eq!(pieces(&["é!"], &["café", "!"]).0, ["caf", ""], "characters are not cut");
        assert_eq!(pieces(&[""], &["text"]).0, ["text"]);
    }
}
