//! Ending a text at a string, although it comes in pieces: the string may begin in one piece and end in another.

/// Watches one text for the strings that end it.
#[derive(Debug, Clone)]
pub struct StopWatch<'a> {
    stops: &'a [String],
    /// The end of the text that may yet turn out to be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl<'a> StopWatch<'a> {
    /// A watch at the beginning of a text. Empty strings never end one.
    pub fn new(stops: &'a [String]) -> Self {
        Self { stops, held: String::new(), stopped: false }
    }

    /// Takes the next piece and returns the text that is certain not to belong to a stop string: nothing of such a string is
    /// ever returned, and nothing after it.
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

    /// Whether a stop string has been seen.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// The text has ended by itself: what was held back belongs to it after all.
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
