{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A text as the value of a label: at most 63 characters of a few kinds. */}}
{{- define "weir.label" -}}
{{- regexReplaceAll "[^A-Za-z0-9._-]" . "_" | trunc 63 | trimAll "._-" -}}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ include "weir.label" (default .Chart.Name .Values.nameOverride) | quote }}
app.kubernetes.io/instance: {{ include "weir.label" .Release.Name | quote }}
{{- end -}}

{{/* What is common to all objects; pods have podLabels as well. */}}
{{- define "weir.labels" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag | splitList "@" | first -}}
{{- if and .Values.image.digest (not .Values.image.tag) -}}
{{- $tag = .Values.image.digest | replace "sha256:" "" | trunc 12 -}}
{{- end -}}
{{- $own := include "weir.selector" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" (include "weir.label" $tag) -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version) -}}
{{- toYaml (merge $own .Values.commonLabels) -}}
{{- end -}}

{{- define "weir.image" -}}
{{- if .Values.image.digest -}}
{{- .Values.image.repository }}{{ with .Values.image.tag }}:{{ . }}{{ end }}@{{ .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "weir.tokensSecret" -}}
{{- default (printf "%s-tokens" (include "weir.fullname" .)) .Values.tokensSecret -}}
{{- end -}}

{{- define "weir.rulesConfigMap" -}}
{{- default (printf "%s-rules" (include "weir.fullname" .)) .Values.rulesConfigMap -}}
{{- end -}}

{{/* Decision doors that are open, as name: port. */}}
{{- define "weir.ports" -}}
{{- range $door := list "http" "grpc" "resp" "spoe" "proxy" -}}
{{- with index $.Values.ports $door }}
{{ $door }}: {{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether several pods may run. */}}
{{- define "weir.several" -}}
{{- if .Values.autoscaling.enabled -}}
{{- if gt (int .Values.autoscaling.maxReplicas) 1 -}}yes{{- end -}}
{{- else if gt (int .Values.replicas) 1 -}}yes
{{- end -}}
{{- end -}}

{{/* A duration of Go (1m30s, 500ms) in milliseconds, rounded up; what is none is 0: weir refuses it. */}}
{{- define "weir.milliseconds" -}}
{{- $units := dict "h" 3600000.0 "m" 60000.0 "s" 1000.0 "ms" 1.0 "us" 0.001 "µs" 0.001 "ns" 0.000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+(h|ms|us|µs|ns|m|s)" (toString .) -1 -}}
{{- $unit := regexFind "[a-zµ]+$" . -}}
{{- $sum = addf $sum (mulf (float64 (trimSuffix $unit .)) (get $units $unit)) -}}
{{- end -}}
{{- ceil $sum | int64 -}}
{{- end -}}

{{/* The times of drain together, in milliseconds. */}}
{{- define "weir.drain" -}}
{{- $drain := default "10s" .Values.config.drain -}}
{{- range .Values.env -}}
{{- if eq .name "WEIR_DRAIN" -}}{{- $drain = default "10s" .value -}}{{- end -}}
{{- end -}}
{{- $sum := 0 -}}
{{- range ternary $drain (splitList "," (toString $drain)) (kindIs "slice" $drain) -}}
{{- $sum = add $sum (include "weir.milliseconds" .) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Bytes of a quantity of memory (1Gi, 512M); 0 if it is none. */}}
{{- define "weir.bytes" -}}
{{- $units := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- $text := toString . -}}
{{- if kindIs "float64" . -}}{{- $text = . | int64 | toString -}}{{- end -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- if and $number (hasKey $units $unit) -}}
{{- mulf (float64 $number) (get $units $unit) | floor | int64 -}}
{{- else -}}0
{{- end -}}
{{- end -}}

{{/* The Service of the admin port, which is there if something leads to it. */}}
{{- define "weir.adminName" -}}
{{- printf "%s-admin" (include "weir.fullname" .) -}}
{{- end -}}
{{- define "weir.adminService" -}}
{{- if or .Values.admin.service.enabled .Values.admin.ingress.enabled .Values.monitoring.serviceMonitor.enabled -}}yes{{- end -}}
{{- end -}}

{{/* Whether somebody may scrape the admin port. */}}
{{- define "weir.scraped" -}}
{{- if or (not .Values.networkPolicy.enabled) .Values.networkPolicy.monitoring -}}yes{{- end -}}
{{- end -}}

{{/*
A digest of what Secrets hold that pods read only when they start; empty where there is no cluster to
ask, as for helm template.
*/}}
{{- define "weir.secrets" -}}
{{- $names := list .Values.storeSecret.name .Values.rulesSecret.name -}}
{{- range .Values.envFrom -}}
{{- $names = append $names (dig "secretRef" "name" "" .) -}}
{{- end -}}
{{- range .Values.env -}}
{{- $names = append $names (dig "valueFrom" "secretKeyRef" "name" "" .) -}}
{{- end -}}
{{- $held := dict -}}
{{- range $names | compact | uniq | sortAlpha -}}
{{- with lookup "v1" "Secret" $.Release.Namespace . -}}
{{- $_ := set $held .metadata.name .data -}}
{{- end -}}
{{- end -}}
{{- if $held -}}{{- toJson $held | sha256sum -}}{{- end -}}
{{- end -}}

{{/* Values that could not run, or not as they say. */}}
{{- define "weir.check" -}}
{{- $ports := include "weir.ports" . | fromYaml -}}
{{- if not $ports -}}
{{- fail "ports: no door is open; give one of http, grpc, resp, spoe and proxy a port" -}}
{{- end -}}
{{- $taken := dict (toString .Values.ports.admin) "admin" -}}
{{- range $door, $port := $ports -}}
{{- $port = $port | int | toString -}}
{{- if hasKey $taken $port -}}
{{- fail (printf "ports: %s and %s have one port, %s; give each its own" (get $taken $port) $door $port) -}}
{{- end -}}
{{- $_ := set $taken $port $door -}}
{{- end -}}
{{- $grace := mul (int64 .Values.terminationGracePeriodSeconds) 1000 -}}
{{- $needs := add (mul (int64 .Values.preStopSeconds) 1000) (include "weir.drain" .) -}}
{{- if ge $needs $grace -}}
{{- fail (printf "terminationGracePeriodSeconds: %d s are over before preStopSeconds (%d s) and drain (%s) are; raise it above their sum" (int64 .Values.terminationGracePeriodSeconds) (int64 .Values.preStopSeconds) (printf "%d ms" (include "weir.drain" . | int64))) -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail (printf "autoscaling: minReplicas (%d) is above maxReplicas (%d)" (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if not (or (dig "requests" "cpu" "" .Values.resources) (dig "limits" "cpu" "" .Values.resources)) -}}
{{- fail "autoscaling: targetCPU is a share of resources.requests.cpu, which is missing" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.stateClaim (include "weir.several" .) -}}
{{- fail "stateClaim: several pods would write the same files; leave it out, or run one pod" -}}
{{- end -}}
{{- range $key, $value := .Values.config -}}
{{- if regexMatch "://[^/?#@\\s]*:[^/?#@\\s]+@|[?&](ssl)?password=[^&\\s]" (toYaml $value) -}}
{{- fail (printf "config.%s: there is a password in it, which everybody could read who may read ConfigMaps; give the store in storeSecret, the rules in rulesSecret, and anything else as a variable (env, envFrom), or name a file of filesSecret (passfile=)" $key) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not (index $ports "proxy")) -}}
{{- fail "ingress: it leads to the reverse proxy, which is off; set ports.proxy and config.proxy.upstream" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress: hosts is empty; name the hosts that it is for" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not (index $ports "proxy")) -}}
{{- fail "httpRoute: it leads to the reverse proxy, which is off; set ports.proxy and config.proxy.upstream" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute: parentRefs is empty; name the Gateway that it belongs to" -}}
{{- end -}}
{{- if and .Values.admin.ingress.enabled (not .Values.admin.ingress.hosts) -}}
{{- fail "admin.ingress: hosts is empty; name the hosts that it is for" -}}
{{- end -}}
{{- if and .Values.admin.ingress.enabled (not (include "weir.scraped" .)) -}}
{{- fail "admin.ingress: the network policy lets nobody reach the admin port; name its controller in networkPolicy.monitoring" -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled (not (include "weir.scraped" .)) -}}
{{- fail "monitoring.serviceMonitor: the network policy lets nobody reach the admin port; name Prometheus in networkPolicy.monitoring" -}}
{{- end -}}
{{- end -}}

{{/* Whether the rules lie in a database. */}}
{{- define "weir.ruleDatabase" -}}
{{- if .Values.rulesSecret.name -}}yes
{{- else if regexMatch "^postgres(ql)?://" (toString (default "" .Values.config.rules)) -}}yes
{{- end -}}
{{- end -}}

{{/* weir.yaml: what the chart decides goes before what config says. */}}
{{- define "weir.config" -}}
{{- $listen := dict "admin" (printf ":%d" (int .Values.ports.admin)) -}}
{{- range $door := list "http" "grpc" "resp" "spoe" "proxy" -}}
{{- $port := int (index $.Values.ports $door) -}}
{{- $_ := set $listen $door (ternary (printf ":%d" $port) "off" (gt $port 0)) -}}
{{- end -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "listen" $listen -}}
{{- if and .Values.rulesSecret.name $config.rules -}}
{{- fail "config.rules and rulesSecret name two places of rules; give one" -}}
{{- end -}}
{{- if include "weir.ruleDatabase" . -}}
{{- if .Values.rulesConfigMap -}}
{{- fail "rulesConfigMap: the rules lie in a database (rulesSecret or config.rules); give one of them" -}}
{{- end -}}
{{- $db := default dict $config.rules_db -}}
{{- if not (hasKey $db "cache") -}}
{{- $_ := set $db "cache" "/var/lib/weir/rules.cache" -}}
{{- end -}}
{{- $_ := set $config "rules_db" $db -}}
{{- else if $config.rules -}}
{{- fail "config.rules: may name a PostgreSQL, as postgres://…; files are those of rules or rulesConfigMap" -}}
{{- else -}}
{{- $_ := set $config "rules" "/rules" -}}
{{- end -}}
{{- $auth := default dict $config.auth -}}
{{- $_ := set $auth "tokens_file" "/etc/weir-tokens/tokens" -}}
{{- $_ := set $config "auth" $auth -}}
{{- if include "weir.adminService" . -}}
{{- $admin := default dict $config.admin -}}
{{- $hosts := default list $admin.hosts -}}
{{- if not (kindIs "slice" $hosts) -}}
{{- $hosts = splitList "," $hosts -}}
{{- end -}}
{{- $name := include "weir.adminName" . -}}
{{- range $suffix := list "" (printf ".%s" .Release.Namespace) (printf ".%s.svc" .Release.Namespace) -}}
{{- $hosts = append $hosts (printf "%s%s" $name $suffix) -}}
{{- end -}}
{{- if .Values.admin.ingress.enabled -}}
{{- $hosts = concat $hosts .Values.admin.ingress.hosts -}}
{{- end -}}
{{- $_ := set $admin "hosts" ($hosts | uniq) -}}
{{- $_ := set $config "admin" $admin -}}
{{- end -}}
{{- if .Values.tlsSecret -}}
{{- $tls := default dict $config.tls -}}
{{- $_ := set $tls "cert" "/etc/weir-tls/tls.crt" -}}
{{- $_ := set $tls "key" "/etc/weir-tls/tls.key" -}}
{{- if not $tls.doors -}}
{{- $_ := set $tls "doors" (keys (include "weir.ports" . | fromYaml) | sortAlpha) -}}
{{- end -}}
{{- if has "admin" $tls.doors -}}
{{- fail "config.tls.doors: leave admin out: Kubernetes probes it over plain HTTP" -}}
{{- end -}}
{{- $_ := set $config "tls" $tls -}}
{{- end -}}
{{- $own := $config.store -}}
{{- if kindIs "map" $own -}}
{{- $own = $own.url -}}
{{- end -}}
{{- $store := default "memory" $own -}}
{{- if and .Values.storeSecret.name $own -}}
{{- fail "config.store and storeSecret name two stores; give one" -}}
{{- end -}}
{{- if and (include "weir.several" .) (eq $store "memory") (not .Values.storeSecret.name) -}}
{{- fail "several pods need a store that they share, a Redis, PostgreSQL or Cassandra: set storeSecret or config.store, or replicas: 1 without autoscaling. In its own memory each pod would admit the whole limit" -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
