# What the servers in Ruby have in common: Rails as it comes, behind Puma.
require "logger"
require "rails"
require "action_controller/railtie"
require "puma"
require "puma/server"

class Upstream < Rails::Application
  config.eager_load = true
  config.consider_all_requests_local = false
  config.secret_key_base = "none" * 16
  config.logger = Logger.new(nil)
  config.hosts.clear
end

def serve(port, &routes)
  Upstream.routes.append(&routes)
  Upstream.initialize!
  server = Puma::Server.new(Upstream)
  server.add_tcp_listener "127.0.0.1", port.to_i
  server.run.join
end
