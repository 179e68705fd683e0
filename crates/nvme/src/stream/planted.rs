//! Bugs that a crate's tests plant.

/// Declares `Bug`, the bugs that somebody could have written and that tests plant, one at a time in a thread, to prove
/// that they would be found: `plant` does, and code asks `has` where it would have been. Outside of tests no bug is
/// there, and nothing is left of the question.
#[macro_export]
macro_rules! planted_bugs {
    ($($(#[$about:meta])* $bug:ident),+ $(,)?) => {
        /// A bug that somebody could have written.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$about])* $bug,)+
        }

        #[cfg(test)]
        impl Bug {
            /// Each of them.
            pub const ALL: &[Bug] = &[$(Bug::$bug),+];
        }

        #[cfg(test)]
        thread_local! {
            static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
        }

        /// Plants a bug in this thread, in place of the one before.
        #[cfg(test)]
        pub fn plant(bug: Option<Bug>) {
            PLANTED.set(bug);
        }

        /// Whether a bug is planted.
        #[cfg(test)]
        pub fn has(bug: Bug) -> bool {
            PLANTED.get() == Some(bug)
        }

        /// No bug is.
        #[cfg(not(test))]
        pub const fn has(_: Bug) -> bool {
            false
        }
    };
}
