-- Stores an incoming order once: mariadb --init-command="set @order_id = '7', @body = '{}'" shop < receive.sql
select oncebox.receive(
    'shop', concat('order-', @order_id), 'order.placed', @body, @order_id, '{"source": "mariadb"}'
);
