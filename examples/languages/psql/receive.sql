-- Stores an incoming order once: psql -v order_id=7 -v body='{"cents":250}' -f receive.sql
\set ON_ERROR_STOP on
select oncebox.receive(
    'shop', 'order-' || :'order_id', 'order.placed', :'body', key => :'order_id', headers => '{"source": "psql"}'
);
