-- Charges a card once per order: psql -v order_id=7 -v cents=250 -f charge.sql
\set ON_ERROR_STOP on
begin;
select oncebox.once('charge-card', 'order-' || :'order_id') as first \gset
\if :first
    select oncebox.publish(
        'order.paid', json_build_object('order_id', :'order_id', 'cents', :cents)::text,
        key => :'order_id', headers => '{"source": "psql"}'
    ) as message_id \gset
    insert into charge (order_id, cents) values (:'order_id', :cents);
    commit;
    \echo first
\else
    rollback;
    \echo again
\endif
