//! Wake-ups between processes through LISTEN and NOTIFY: a hint, never proof.

use oncebox_core::{Error, Wake};
use sqlx::postgres::{PgListener, PgPoolOptions};

use crate::error::classify;
use crate::store::Inner;
use crate::tx::autocommit;

impl Inner {
    pub(crate) async fn announce(&self) -> Result<(), Error> {
        if !self.options.notify {
            return Ok(());
        }
        autocommit!(self, |connection| {
            self.sql.announce.query().bind(&self.channel).execute(&mut *connection).await?;
            Ok(())
        })
    }

    /// Listens on a connection outside the store's pool, so that it takes none from the handlers.
    pub(crate) async fn listen(&self, wake: Wake) -> Result<(), Error> {
        if !self.options.notify {
            return std::future::pending().await;
        }
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_lazy_with(self.pool.connect_options().as_ref().clone());
        let mut listener = PgListener::connect_with(&pool).await.map_err(classify)?;
        listener.listen(&self.channel).await.map_err(classify)?;
        loop {
            // Also after a lost connection (`None`): what was announced meanwhile was announced to nobody.
            wake.ring();
            listener.try_recv().await.map_err(classify)?;
        }
    }
}
