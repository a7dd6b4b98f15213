// The APIs as the clients call them that openapi-generator makes: HTTP ADMIN TOKEN
import java.net.http.HttpRequest;
import java.util.*;
import java.util.function.Consumer;
import weir.admin.model.BanRequest;
import weir.decision.model.*;

public class Client {
  static weir.decision.api.DefaultApi api;

  static void decide(String user) throws Exception {
    Decision d;
    try {
      d = api.limit(new Request().domain("shop").attributes(Map.of("user", user)));
    } catch (weir.decision.ApiException refused) { // the client throws at each status from 300 on
      if (refused.getCode() != 429) throw refused;
      d = weir.decision.JSON.getDefault().getMapper().readValue(refused.getResponseBody(), Decision.class);
    }
    List<Long> limits = new ArrayList<>();
    for (Limit l : d.getLimits()) limits.add(l.getLimit());
    System.out.println(user + " " + d.getAllowed() + " " + d.getLimitedBy() + " " + limits);
  }

  public static void main(String[] args) throws Exception {
    Consumer<HttpRequest.Builder> bearer = r -> { if (!args[2].isEmpty()) r.header("Authorization", "Bearer " + args[2]); };
    var weirClient = new weir.decision.ApiClient();
    weirClient.updateBaseUri(args[0]);
    api = new weir.decision.api.DefaultApi(weirClient.setRequestInterceptor(bearer));
    var adminClient = new weir.admin.ApiClient();
    adminClient.updateBaseUri(args[1]);
    var admin = new weir.admin.api.DefaultApi(adminClient.setRequestInterceptor(bearer));
    for (int i = 0; i < 3; i++) decide("ada");
    Reservation held = api.reserve(new ReserveRequest().domain("shop").attributes(Map.of("user", "eve")).hits(2).timeout(60.0));
    System.out.println("eve holds " + held.getAllowed() + " " + held.getExpiresIn());
    System.out.println("eve commits " + api.commitWithHttpInfo(new Commit().reservation(held.getReservation()).hits(1)).getStatusCode());
    var used = new TreeSet<String>();
    for (var k : admin.keys("api", null, null, null, null).getKeys()) used.add(k.getKey() + " " + k.getUsed());
    System.out.println("used " + used);
    var ban = admin.setBan(new BanRequest().limit("api").domain("shop").key(List.of("eve"))._for("1h"));
    System.out.println("banned " + ban.getBan().getKey() + " " + ban.getShared());
    decide("eve");
    List<List<String>> keys = new ArrayList<>();
    for (var b : admin.bans(null, null, null).getBans()) keys.add(b.getKey());
    System.out.println("bans " + keys);
    System.out.println("unbanned " + admin.endBan(null, "api", "eve", null, null).getBan().getKey());
    decide("eve");
    System.out.println("reset " + admin.resetKeyWithHttpInfo("api", null, "ada", null, null).getStatusCode());
    decide("ada");
    List<String> rules = new ArrayList<>();
    for (var r : admin.ruleReports(null, null, null).getRules()) rules.add(r.getName());
    System.out.println("read " + admin.overview(null, null).getBefore() + " " + rules + " " + !admin.signals().getSignals().isEmpty());
  }
}
