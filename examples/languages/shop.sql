-- The tables of the shop in the examples for other languages. No unique key: a doubled effect would show.
create table charge (
    order_id text not null,
    cents integer not null,
    constraint charge_cents_check check (cents <= 100000)
);
