//! A window in a forked child, which does not have it.

use crate::signal;
use crate::window::Window;

impl Window {
    /// Lets go, in a forked child, of what it inherited of a window: the parent has the window as it was. Nothing is
    /// mapped where it was, and another one may be opened there.
    ///
    /// # Panics
    /// In the process that opened it.
    pub fn abandon(self) {
        assert!(!self.shared().is_owner(), "a window is closed by who opened it");
        // SIGBUS in another window that is opened at its place is none of this one's.
        signal::forget(self.shared());
    }
}
