-- Charges a card once per order: mariadb --init-command="set @order_id = '7', @cents = 250" shop < charge.sql
delimiter //
start transaction//
begin not atomic
    if oncebox.once('charge-card', concat('order-', @order_id)) then
        set @message_id = oncebox.publish(
            'order.paid', json_object('order_id', @order_id, 'cents', cast(@cents as integer)),
            @order_id, null, '{"source": "mariadb"}', null
        );
        insert into charge (order_id, cents) values (@order_id, @cents);
        select 'first';
    else
        select 'again';
    end if;
end//
commit//
